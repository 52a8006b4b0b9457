from penstock._hot.bits cimport (
    copy_bytes, get_i32, get_i64, get_u8, is_utf8, put_own_i32, put_own_i64, put_u8,
)
from penstock._hot.buffers cimport Content, Numbers
from penstock._hot.layout cimport (
    R_BODY, R_BODY_SIZE, R_ID, R_ID_SIZE, R_KEYS, R_PLAIN, R_RECORD, R_REST, R_TAGS, R_TOPIC, R_TOPIC_SIZE,
    ROW_SIZE,
)
from penstock._hot.pairs cimport Pairs
from penstock._hot.rows cimport RowScan
from penstock._hot.text cimport put_decimal, put_hexadecimal

cdef class Columns(RowScan):
    cdef public bytes broker_name
    cdef object host_text
    cdef dict hosts
    cdef Numbers queue_id, queue_offset, born_time, store_time, reconsume_times, physical_offset, size
    cdef Content topic, broker, message_id, keys, tag, body, born_host
    cdef Pairs properties
    cdef int _fill(self, const unsigned char *p) except? -2
    cdef int _fill_i32(self, const unsigned char *p, Numbers column, Py_ssize_t slot, Py_ssize_t at) except? -2
    cdef int _fill_i64(self, const unsigned char *p, Numbers column, Py_ssize_t at) except? -2
    cdef int _fill_times(self, const unsigned char *p, Numbers column, Py_ssize_t at, Py_ssize_t wide) except? -2
    cdef int _fill_body(self, const unsigned char *p) except? -2
    cdef int _fill_topics(self, const unsigned char *p) except? -2
    cdef int _fill_text(self, const unsigned char *p, Content column, Py_ssize_t slot) except? -2
    cdef int _fill_ids(self, const unsigned char *p) except? -2
    cdef int _fill_broker(self) except? -2
    cdef int _fill_hosts(self, const unsigned char *p) except? -2
    cdef int _put_wide_host(self, const unsigned char *p, Py_ssize_t at) except? -2

cdef Py_ssize_t _put_id(unsigned char *target, Py_ssize_t to, const unsigned char *p, Py_ssize_t pos) noexcept
