from penstock._hot.bits cimport copy_bytes, new_buffer, put_own_i32

cdef class Numbers:
    cdef Py_ssize_t width, rows_max, nulls
    cdef bytearray data, valid

cdef class Content:
    cdef Py_ssize_t rows_max, size, reserve, used, nulls
    cdef bytearray ends, data, valid
    cdef int _make_room(self, Py_ssize_t more) except? -2
    cdef int _make_more_room(self, Py_ssize_t extra) except? -2
    cdef int _make_rows(self, Py_ssize_t rows) except? -2
    cdef int _put_bytes(self, Py_ssize_t row, bytes content) except? -2
    cdef int _put_replaced(self, Py_ssize_t row, const unsigned char *p, Py_ssize_t at, Py_ssize_t size) except? -2
