from penstock._hot.bits cimport all_zero, crc31, find_byte, get_i16, get_i32, get_i64, get_u8
from penstock._hot.layout cimport (
    BAD_CHECKSUM, BAD_LENGTH, BAD_MAGIC, BAD_POSITION, BAD_SIZE, BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, NOTHING,
    RECORD_SIZE_MIN, SEAL_SIZE, TORN,
)

cdef long long check_record(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, long long phy,
                            int verify) noexcept nogil
