from penstock._hot.bits cimport java_hash, put_i32, put_i64
from penstock._hot.layout cimport ENTRY_SIZE, POSITION_MAX

cdef class QueueState:
    cdef readonly bytes topic
    cdef readonly int queue_id
    cdef public long long next_offset
    cdef public long long tail_first
    cdef public Py_ssize_t tail_count
    cdef public long long max_phy
    cdef readonly bytearray tail
    cdef readonly int key_seed
    cdef readonly bint scheduled
    cdef public long long round
    cdef public object owner
    cdef long long add(self, long long phy, int size, long long tags_code) except? -1
