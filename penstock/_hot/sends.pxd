from penstock._hot.bits cimport (
    copy_bytes, find_byte, get_i16, get_i32, get_i64, put_i16, put_i32, put_i64, put_u8, same_bytes,
)
from penstock._hot.frames cimport SendScanner, TopicQueues
from penstock._hot.layout cimport (
    S_BATCH, S_BODY, S_BODY_SIZE, S_BORN, S_FLAG, S_FORM, S_FRAME, S_ID, S_ID_SIZE, S_OFFSET, S_ONEWAY, S_OPAQUE,
    S_PHY, S_PROPERTIES, S_PROPERTIES_SIZE, S_SYS_FLAG, SLOT_COUNT,
)
from penstock._hot.queues cimport QueueState
from penstock._hot.records cimport RecordBuilder
from penstock._hot.text cimport put_decimal, put_hexadecimal, put_text

cdef class SendPath(SendScanner):
    cdef bint _build_batch(self, RecordBuilder builder, QueueState queue, TopicQueues topic, Py_ssize_t at,
                           unsigned char *host, Py_ssize_t host_size) except? -2
    cdef Py_ssize_t _json_answer(self, bytearray out, Py_ssize_t to, Py_ssize_t at, QueueState queue, bytes id_prefix,
                                 list phys) except? -2
    cdef Py_ssize_t _binary_answer(self, bytearray out, Py_ssize_t to, Py_ssize_t at, QueueState queue,
                                   bytes id_prefix, list phys) except? -2
    cdef Py_ssize_t _unique_id(self, unsigned char *o, Py_ssize_t to, Py_ssize_t at) except? -2
    cdef Py_ssize_t _message_ids(self, unsigned char *o, Py_ssize_t to, Py_ssize_t at, bytes id_prefix,
                                 list phys) except? -2
