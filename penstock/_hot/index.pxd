from penstock._hot.bits cimport get_i32, get_i64, put_i32, put_i64, put_u8
from penstock._hot.layout cimport ENTRY_SIZE, INDEX_HEADER_SIZE, POSITION_MAX
from penstock._hot.mapped cimport MappedBytes

cdef class SlotTable:
    cdef unsigned char[::1] view
    cdef unsigned char *base
    cdef readonly object memory
    cdef readonly bytearray dirty
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t capacity
    cdef public Py_ssize_t next_entry
    cdef public Py_ssize_t used_slots
    cdef public long long begin_timestamp
    cdef public long long end_timestamp
    cdef public long long begin_phy
    cdef public long long end_phy
    cdef void _put(self, unsigned char *entry, Py_ssize_t at, unsigned char *dirty, int key_hash, long long phy,
                   long long timestamp) noexcept nogil

cdef long long _next_match(const unsigned char *p, Py_ssize_t size, Py_ssize_t entries_at, long long entries_end,
                           long long number, long long begin, long long wanted, long long from_ms,
                           long long to_ms) noexcept nogil
