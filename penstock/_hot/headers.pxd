from penstock._hot.bits cimport find_byte, get_i16, get_i32, get_u8, same_bytes

cdef class SendHeader:
    cdef Py_ssize_t value_at[16]
    cdef Py_ssize_t value_end[16]
    cdef int code
    cdef int flag
    cdef int opaque
    cdef bint short_names
    cdef bint long_names
    cdef bint escaped
    cdef long long number
    cdef int _begin_header(self) except? -1
    cdef bint _json(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -1
    cdef Py_ssize_t _ext(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef Py_ssize_t _string_end(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end, bint escapes) except? -2
    cdef Py_ssize_t _plain_string(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef Py_ssize_t _number(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef bint _digits(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -1
    cdef int _slot(self, unsigned char *p, Py_ssize_t at, Py_ssize_t size) except? -2
    cdef bint _binary(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -1
    cdef bint _field(self, unsigned char *p, int slot, long long low, long long high) except? -2
    cdef bint _is_text(self, unsigned char *p, int slot, const unsigned char *text, Py_ssize_t size) except? -2
    cdef bint _is_ascii(self, unsigned char *p, Py_ssize_t at, Py_ssize_t end, int low) except? -2
