from penstock._hot.bits cimport copy_bytes, put_u8

cdef Py_ssize_t put_text(unsigned char *o, Py_ssize_t to, const unsigned char *text, Py_ssize_t size) noexcept
cdef Py_ssize_t put_decimal(unsigned char *o, Py_ssize_t to, long long value) noexcept
cdef Py_ssize_t put_hexadecimal(unsigned char *o, Py_ssize_t to, long long value) noexcept
