from penstock._hot.bits cimport (
    copy_bytes, find_byte, get_i16, get_i32, get_i64, get_u8, put_i32, same_bytes,
)
from penstock._hot.checks cimport check_record
from penstock._hot.layout cimport (
    DELAY_ROOM, I_LENGTHS, I_LEVEL, I_NO_KEY, I_PAIR, I_RESERVED, I_TARGET, I_TOO_LONG, ITEM_SIZE_MIN,
)
from penstock._hot.mapped cimport MappedBytes
from penstock._hot.queues cimport QueueState
from penstock._hot.records cimport AppendRequest, RecordBuilder
from penstock._hot.text cimport put_decimal

cdef bint is_reserved(const unsigned char *p, Py_ssize_t at, Py_ssize_t size) noexcept

cdef class CopyTargets:
    cdef list queues
    cdef list flags
    cdef list places
    cdef list levels
    cdef bytes suffix
    cdef bytearray scratch
    cdef readonly long long prepared

cdef class StagedItems:
    cdef MappedBytes content
    cdef Py_ssize_t start
    cdef readonly Py_ssize_t pos
    cdef readonly Py_ssize_t row
    cdef Py_ssize_t end
    cdef Py_ssize_t marked_pos
    cdef Py_ssize_t marked_row
    cdef readonly Py_ssize_t count
    cdef readonly long long largest
    cdef readonly Py_ssize_t refused
    cdef readonly long long levels
    cdef bytearray counts
    cdef CopyTargets targets
    cdef long long born_timestamp
    cdef bytes born_host
    cdef long long bytes_max
    cdef Py_ssize_t count_max
    cdef Py_ssize_t _item(self) except? -1
    cdef int _step(self) except? -1
    cdef QueueState _queue(self)
    cdef Py_ssize_t _properties(self, Py_ssize_t body_size) except? -1
