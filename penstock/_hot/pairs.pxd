from penstock._hot.bits cimport copy_bytes, find_byte, get_i64, get_own_i32, put_own_i32, same_bytes
from penstock._hot.buffers cimport Content
from penstock._hot.layout cimport PAIRS_MAX, R_PLAIN, R_TEXT, R_TEXT_SIZE, ROW_SIZE

cdef class Pairs:
    cdef Content rows, names, values
    cdef Py_ssize_t count
    cdef int _fill(self, const unsigned char *p, unsigned char *s, Py_ssize_t row, Py_ssize_t count,
                   Py_ssize_t text_bytes) except? -2
    cdef bint _put_pairs(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef int _put_dictionary(self, bytes data) except? -2

cdef bint _has_name(unsigned char *names, unsigned char *ends, Py_ssize_t first, Py_ssize_t last,
                    const unsigned char *p, Py_ssize_t at, Py_ssize_t size) noexcept
