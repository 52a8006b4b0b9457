from penstock._hot.bits cimport (
    find_byte, get_i16, get_i32, get_i64, get_u8, is_utf8, java_hash, prefetch_at, put_i64, same_bytes,
)
from penstock._hot.checks cimport check_record
from penstock._hot.layout cimport (
    AHEAD, BAD_CHECKSUM, BAD_SIZE, BLOCK_BYTES, BLOCK_ROWS, ELSEWHERE, ENTRY_SIZE, FILLER_SIZE, MAGIC_V2, NO_RECORD,
    NOT_PACKED, R_BODY, R_BODY_SIZE, R_ID, R_ID_SIZE, R_KEYS, R_KEYS_SIZE, R_PLAIN, R_RECORD, R_REST, R_TAGS, R_TAGS_SIZE,
    R_TEXT, R_TEXT_SIZE, R_TOPIC, R_TOPIC_SIZE, RECORD_SIZE_MIN, ROW_SIZE,
)
from penstock._hot.mapped cimport MappedBytes

cdef class RowScan:
    cdef bytearray slots
    cdef readonly Py_ssize_t rows_max
    cdef long long size_max
    cdef list tags
    cdef bytes codes
    cdef bytes key
    cdef int verify
    cdef bint find_names
    cdef bint reads_text
    cdef object unpack
    cdef readonly Py_ssize_t rows
    cdef long long taken_bytes
    cdef readonly bint full
    cdef readonly bint cut_short
    cdef readonly long long next_offset
    cdef public list damaged
    cdef Py_ssize_t count
    cdef long long block_bytes, body_bytes, topic_bytes, text_bytes
    cdef list unpacked
    cdef int _clear_block(self) except? -2
    cdef int _fill(self, const unsigned char *p) except? -2
    cdef int _end_block(self, const unsigned char *p) except? -2
    cdef int _note(self, long long first, long long last, int reason) except? -2
    cdef bint _is_full(self, long long size) except? -2
    cdef int _place(self, const unsigned char *p, Py_ssize_t pos, long long size) except? -20
    cdef int _find_names(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
    cdef bint _is_wanted(self, const unsigned char *p) except? -2

cdef bint _has_code(const unsigned char *codes, Py_ssize_t codes_size, int code) noexcept
cdef bint _is_text(const unsigned char *p, Py_ssize_t at, Py_ssize_t size, bytes wanted) noexcept
cdef bint _is_of_queue(const unsigned char *p, Py_ssize_t pos, int queue_id, const unsigned char *name,
                       Py_ssize_t size) noexcept
