from penstock._hot.bits cimport (
    all_zero, copy_bytes, find_byte, get_i32, get_i64, get_u8, new_buffer,
)
from penstock._hot.layout cimport BLANK, ENTRY_SIZE, MAGIC_V1, MAGIC_V2
from penstock._hot.mapped cimport MappedBytes
from penstock._hot.records cimport check_record

cdef class EntrySelection:
    cdef readonly list positions
    cdef readonly list sizes
    cdef readonly list offsets
    cdef readonly long long total_bytes
    cdef readonly long long scanned_to
    cdef readonly bint full
    cdef object tags
    cdef Py_ssize_t max_count
    cdef long long max_bytes
    cdef int _scan(self, const unsigned char *p, Py_ssize_t count, long long first) except? -1
