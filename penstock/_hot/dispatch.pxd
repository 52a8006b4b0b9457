from penstock._hot.bits cimport (
    find_byte, get_i16, get_i32, get_i64, get_u8, java_hash, prefetch, put_i32, put_i64,
    same_bytes,
)
from penstock._hot.layout cimport (
    BLANK, DAMAGED, DONE, END_OF_SEGMENT, GAP, MAGIC_BLANK, MAGIC_V2, NEW_QUEUE, NOTHING, ENTRY_SIZE,
    POSITION_MAX,
)
from penstock._hot.mapped cimport MappedBytes
from penstock._hot.queues cimport QueueState
from penstock._hot.records cimport AppendRequest, RecordBuilder
from penstock._hot.checks cimport check_record

cdef class Dispatcher:
    cdef dict queues
    cdef list cache
    cdef list delays_ms
    cdef bint index_keys
    cdef readonly list touched
    cdef readonly list heavy
    cdef Py_ssize_t tail_max
    cdef long long round
    cdef readonly bytearray keys
    cdef bytearray spare_keys
    cdef public Py_ssize_t key_count
    cdef public long long indexed_to
    cdef readonly Py_ssize_t position
    cdef readonly long long count
    cdef public long long last_timestamp
    cdef public long long offset
    cdef public long long limit
    cdef public bint direct
    cdef Py_ssize_t tags, tags_end, keys_at, keys_end, unique, unique_end, delay, delay_end
    cdef bytearray _room_for_keys(self)
    cdef int _show(self, object requests, long long base, long long end) except? -1
    cdef int _run_requests(self, object requests) except? -1
    cdef int _run(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long base,
                  bint built) except? -1
    cdef QueueState _queue(self, const unsigned char *p, Py_ssize_t topic_at, Py_ssize_t topic_size, int queue_id)
    cdef int _add_key(self, int key_hash, long long phy, long long timestamp) except? -1
    cdef int _add_keys(self, QueueState queue, const unsigned char *p, long long phy, long long timestamp) except? -1
    cdef long long _tags_code(self, QueueState queue, const unsigned char *p, long long timestamp) except? -1
    cdef void _find_properties(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end) noexcept
