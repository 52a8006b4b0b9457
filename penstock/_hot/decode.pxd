from penstock._hot.bits cimport (
    copy_bytes, get_i16, get_i32, get_i64, get_u8, new_buffer, put_i16, put_i32, same_bytes,
)
from penstock._hot.checks cimport check_record
from penstock._hot.layout cimport MAGIC_V2

cdef class RawRecord:
    cdef readonly bytes topic
    cdef readonly bytes body
    cdef readonly bytes properties
    cdef readonly bytes born_host
    cdef readonly bytes store_host
    cdef readonly int size
    cdef readonly int body_crc
    cdef readonly int queue_id
    cdef readonly int flag
    cdef readonly long long queue_offset
    cdef readonly long long physical_offset
    cdef readonly int sys_flag
    cdef readonly long long born_timestamp
    cdef readonly long long store_timestamp
    cdef readonly int reconsume_times
    cdef readonly long long prepared_offset
