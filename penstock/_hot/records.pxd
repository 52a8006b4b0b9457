from penstock._hot.bits cimport (
    copy_bytes, copy_crc31, crc31, find_byte, get_i16, get_i32, get_u8, prefetch, put_i16, put_i32,
    put_i64, put_u8, write_ahead,
)
from penstock._hot.layout cimport BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SEAL_SIZE
from penstock._hot.queues cimport QueueState

cdef class AppendRequest:
    cdef public QueueState queue
    cdef public bytes body
    cdef public bytes properties
    cdef public int flag
    cdef public int sys_flag
    cdef public long long born_timestamp
    cdef public bytes born_host
    cdef public int reconsume_times
    cdef public long long prepared_offset
    cdef public int size
    cdef public long long physical_offset
    cdef public long long queue_offset
    cdef public long long store_timestamp

cdef class RecordBuilder:
    cdef readonly bytearray buffer
    cdef readonly Py_ssize_t used
    cdef readonly Py_ssize_t count
    cdef readonly int error
    cdef readonly bytes store_host
    cdef bint seal
    cdef readonly int max_body
    cdef readonly long long base
    cdef readonly long long room
    cdef long long now
    cdef object requests
    cdef list given
    cdef Py_ssize_t first
    cdef Py_ssize_t after
    cdef QueueState batch_queue
    cdef long long batch_first
    cdef Py_ssize_t _build(self, object requests, long long base, long long room, long long now) except? -2
    cdef Py_ssize_t _add_all(self, object requests, Py_ssize_t first) except? -2
    cdef int _write(self, int fd, long long position) except? -2
    cdef int _begin(self, long long base, long long room, long long now) except? -2
    cdef bint _add(self, AppendRequest request) except? -1
    cdef int _reserve(self, Py_ssize_t size) except? -1
    cdef long long put(self, QueueState queue, const unsigned char *body, Py_ssize_t body_at, Py_ssize_t body_size,
                       unsigned char *properties, Py_ssize_t properties_at, Py_ssize_t properties_size, int flag,
                       int sys_flag, long long born_timestamp, unsigned char *born_host, Py_ssize_t born_size,
                       int reconsume_times, long long prepared_offset) except? -1
