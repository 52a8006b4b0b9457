from penstock._hot.bits cimport (
    copy_bytes, find_byte, get_own_i32, get_u8, java_hash, put_i16, put_i32, put_u8, same_bytes,
)
from penstock._hot.layout cimport (
    E_DELAY, E_KEYS, E_LONG_BODY, E_NAME, E_NO_BODY, E_NO_TOPIC, E_PROPERTIES, E_QUEUE, E_TAGS, E_VALUE,
    IDS_PER_MOMENT, ITEM_SIZE_MIN,
)
from penstock._hot.mapped cimport MappedBytes
from penstock._hot.staged cimport is_reserved

cdef class Column:
    cdef MappedBytes numbers
    cdef MappedBytes data
    cdef MappedBytes nulls
    cdef bint is_absent
    cdef bint has_nulls
    cdef readonly bint has_ends
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t size
    cdef bint is_null(self, Py_ssize_t row) noexcept
    cdef long long number(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t find(self, Py_ssize_t row) except? -1

cdef class RowEncoder:
    cdef Py_ssize_t properties_max
    cdef Py_ssize_t room
    cdef readonly bint is_full
    cdef readonly bytearray out
    cdef readonly Py_ssize_t used
    cdef readonly Py_ssize_t items
    cdef readonly Py_ssize_t row
    cdef readonly int refusal
    cdef bytes id_prefix
    cdef int id_next
    cdef list bases
    cdef list queues
    cdef list turns
    cdef Py_ssize_t rows
    cdef Column body, keys, tags, topic, queue, delay, pairs, names, values
    cdef int _row(self) except? -1
    cdef long long _target(self) except? -100
    cdef Py_ssize_t _key_size(self) except? -1
    cdef Py_ssize_t _text_room(self) except? -1
    cdef int _reserve(self, Py_ssize_t size) except? -1
    cdef Py_ssize_t _properties(self, Py_ssize_t to) except? -100
    cdef Py_ssize_t _named(self, Py_ssize_t to, const unsigned char *name, Column column) except? -100
    cdef Py_ssize_t _pair(self, Py_ssize_t to, Py_ssize_t i, bint has_keys, bint has_tags) except? -100
