cdef extern from *:
    """
    #include <errno.h>
    #include <unistd.h>
    static int penstock_fdatasync(int fd) { return fdatasync(fd) == 0 ? 0 : (errno ? errno : EIO); }
    static ssize_t penstock_read(int fd, void *into, size_t size) {
        ssize_t n;
        do n = read(fd, into, size); while (n < 0 && errno == EINTR);
        return n;
    }
    """
    int fdatasync "penstock_fdatasync"(int fd) noexcept nogil
    Py_ssize_t read "penstock_read"(int fd, void *into, size_t size) noexcept nogil
    Py_ssize_t write(int fd, const void *data, size_t size) noexcept nogil

cdef class SyncThread:
    cdef int wake_fd
    cdef int done_fd
    cdef public int fd
    cdef readonly int error
    cdef public bint stopping
