from penstock._hot.bits cimport (
    copy_bytes, find_byte, get_i16, get_i32, get_i64, get_u8, move_bytes, put_i16, put_i32, put_i64, put_u8,
    same_bytes,
)
from penstock._hot.headers cimport SendHeader
from penstock._hot.layout cimport (
    S_BATCH, S_BODY, S_BODY_SIZE, S_BORN, S_FLAG, S_FORM, S_FRAME, S_ID, S_ID_SIZE, S_OFFSET, S_ONEWAY, S_OPAQUE,
    S_PHY, S_PROPERTIES, S_PROPERTIES_SIZE, S_SYS_FLAG, SLOT_COUNT,
)
from penstock._hot.queues cimport QueueState
from penstock._hot.records cimport RecordBuilder
from penstock._hot.text cimport put_decimal, put_hexadecimal, put_text

cdef class TopicQueues:
    cdef readonly bytes name
    cdef readonly list queues
    cdef public long long messages
    cdef public long long bytes

cdef class SendScanner(SendHeader):
    cdef dict topics
    cdef TopicQueues last_topic
    cdef readonly bytes suffix
    cdef bytes head_fields
    cdef bytes binary_fields
    cdef long long frame_max
    cdef Py_ssize_t header_max
    cdef Py_ssize_t batch_max
    cdef bytearray slots
    cdef bytearray scratch
    cdef Py_ssize_t used
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t built
    cdef readonly list queues
    cdef readonly list owners
    cdef readonly list touched
    cdef bytes data
    cdef list positions
    cdef Py_ssize_t id_at
    cdef Py_ssize_t id_size
    cdef bint _take(self, unsigned char *p, Py_ssize_t frame, Py_ssize_t body, Py_ssize_t end, int form) except? -2
    cdef TopicQueues _topic(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end)
    cdef bint _is_only_wait(self, unsigned char *p) except? -2
    cdef bint _is_batch(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef bint _check_items(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef bint _is_word(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef bint _properties(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end, int form) except? -2
