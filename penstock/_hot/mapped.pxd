cdef class MappedBytes:
    cdef const unsigned char[::1] view
    cdef const unsigned char *base
    cdef readonly Py_ssize_t size
    cdef readonly object source
