from penstock._hot.bits cimport (
    all_zero, copy_bytes, find_byte, get_i16, get_i32, get_i64, get_u8, new_buffer, prefetch_at, put_i32,
    put_i64, same_bytes,
)
from penstock._hot.layout cimport (
    AHEAD, ENTRY_SIZE, FILLER_SIZE, MAGIC_V1, MAGIC_V2, POSITION_MAX, RECORD_SIZE_MIN,
)
from penstock._hot.mapped cimport MappedBytes
from penstock._hot.checks cimport check_record

cdef class EntrySelection:
    cdef bytearray chosen
    cdef readonly Py_ssize_t count
    cdef readonly long long total_bytes
    cdef readonly long long scanned_to
    cdef readonly bint full
    cdef object tags
    cdef Py_ssize_t max_count
    cdef long long max_bytes
    cdef int _scan(self, const unsigned char *p, Py_ssize_t count, long long first) except? -1
