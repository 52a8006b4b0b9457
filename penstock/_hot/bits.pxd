# Byte order, copying, searching and checksums as inline C: the only C in Penstock.
# `bits.py` is the pure form of the same functions.
#
# The checksum folds 128 or 64 bytes at a time with carry-less multiplication where the processor has it (found
# out at run time) and uses eight tables otherwise; all give zlib's CRC-32, of which RocketMQ keeps 31 bits.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <errno.h>
    #include <unistd.h>
    #include <sys/uio.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define PENSTOCK_FOLD 1
    #endif

    static inline int penstock_get_u8(const unsigned char *p, Py_ssize_t at) { return p[at]; }
    static inline int penstock_get_i16(const unsigned char *p, Py_ssize_t at) {
        uint16_t v; memcpy(&v, p + at, 2); return (int16_t)__builtin_bswap16(v);
    }
    static inline int32_t penstock_get_i32(const unsigned char *p, Py_ssize_t at) {
        uint32_t v; memcpy(&v, p + at, 4); return (int32_t)__builtin_bswap32(v);
    }
    static inline int64_t penstock_get_i64(const unsigned char *p, Py_ssize_t at) {
        uint64_t v; memcpy(&v, p + at, 8); return (int64_t)__builtin_bswap64(v);
    }
    static inline void penstock_put_u8(unsigned char *p, Py_ssize_t at, int v) { p[at] = (unsigned char)v; }
    static inline void penstock_put_i16(unsigned char *p, Py_ssize_t at, int v) {
        uint16_t w = __builtin_bswap16((uint16_t)v); memcpy(p + at, &w, 2);
    }
    static inline void penstock_put_i32(unsigned char *p, Py_ssize_t at, int32_t v) {
        uint32_t w = __builtin_bswap32((uint32_t)v); memcpy(p + at, &w, 4);
    }
    static inline void penstock_put_i64(unsigned char *p, Py_ssize_t at, int64_t v) {
        uint64_t w = __builtin_bswap64((uint64_t)v); memcpy(p + at, &w, 8);
    }
    static inline int32_t penstock_get_own_i32(const unsigned char *p, Py_ssize_t at) {
        int32_t v; memcpy(&v, p + at, 4); return v;
    }
    static inline void penstock_put_own_i32(unsigned char *p, Py_ssize_t at, int32_t v) { memcpy(p + at, &v, 4); }
    static inline void penstock_put_own_i64(unsigned char *p, Py_ssize_t at, int64_t v) { memcpy(p + at, &v, 8); }
    static inline void penstock_copy(unsigned char *to, Py_ssize_t to_at, const unsigned char *from,
                                     Py_ssize_t from_at, Py_ssize_t count) {
        unsigned char *t = to + to_at;
        const unsigned char *f = from + from_at;
        /* Hosts, topics and properties are short: two moves that overlap are done before a call would begin. */
        if (count >= 16 && count <= 64) {
            if (count > 32) { memcpy(t + 16, f + 16, 16); memcpy(t + count - 32, f + count - 32, 16); }
            memcpy(t, f, 16);
            memcpy(t + count - 16, f + count - 16, 16);
        } else if (count >= 8 && count < 16) {
            memcpy(t, f, 8);
            memcpy(t + count - 8, f + count - 8, 8);
        } else
            memcpy(t, f, (size_t)count);
    }
    static inline int penstock_same(const unsigned char *a, Py_ssize_t a_at, const unsigned char *b,
                                    Py_ssize_t b_at, Py_ssize_t count) {
        return memcmp(a + a_at, b + b_at, (size_t)count) == 0;
    }
    static inline Py_ssize_t penstock_find(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, int value) {
        const unsigned char *hit;
        if (at >= end) return -1;
        hit = (const unsigned char *)memchr(p + at, value, (size_t)(end - at));
        return hit ? (Py_ssize_t)(hit - p) : -1;
    }
    static inline int penstock_all_zero(const unsigned char *p, Py_ssize_t at, Py_ssize_t end) {
        uint64_t v;
        while (at + 8 <= end) { memcpy(&v, p + at, 8); if (v) return 0; at += 8; }
        while (at < end) if (p[at++]) return 0;
        return 1;
    }

    /* Whether bytes are UTF-8: no surrogates, no longer form than needed. Eight ASCII bytes a round. */
    static inline int penstock_is_utf8(const unsigned char *s, Py_ssize_t at, Py_ssize_t count) {
        const unsigned char *p = s + at, *end = p + count;
        uint64_t v;
        while (p < end) {
            unsigned lead, low, high; int more;
            while (end - p >= 8) {
                memcpy(&v, p, 8);
                if (v & 0x8080808080808080ull) break;
                p += 8;
            }
            if (p == end) return 1;
            lead = *p++;
            if (lead < 0x80) continue;
            more = lead >= 0xC2 && lead <= 0xDF ? 1 : (lead & 0xF0) == 0xE0 ? 2
                 : lead >= 0xF0 && lead <= 0xF4 ? 3 : 0;
            if (!more || end - p < more) return 0;
            low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
            high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
            if (*p < low || *p > high) return 0;
            p++;
            while (--more) { if ((*p & 0xC0) != 0x80) return 0; p++; }
        }
        return 1;
    }

    /* Tables for the portable form: table[k][b] is the checksum of byte b followed by k zero bytes. */
    static uint32_t penstock_crc_table[8][256];
    static int penstock_can_fold, penstock_can_fold_wide;
    __attribute__((constructor)) static void penstock_crc_prepare(void) {
        uint32_t b, c; int k;
        for (b = 0; b < 256; b++) {
            c = b;
            for (k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0xEDB88320u : c >> 1;
            penstock_crc_table[0][b] = c;
        }
        for (b = 0; b < 256; b++)
            for (k = 1; k < 8; k++)
                penstock_crc_table[k][b] = (penstock_crc_table[k - 1][b] >> 8)
                                         ^ penstock_crc_table[0][penstock_crc_table[k - 1][b] & 255];
    #ifdef PENSTOCK_FOLD
        __builtin_cpu_init();
        penstock_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
        penstock_can_fold_wide = penstock_can_fold && __builtin_cpu_supports("avx2")
                              && __builtin_cpu_supports("vpclmulqdq");
    #endif
    }
    static inline uint32_t penstock_crc_tables(uint32_t c, const unsigned char *p, size_t n) {
        uint64_t v;
        while (n >= 8) {
            memcpy(&v, p, 8);
            v ^= c;
            c = penstock_crc_table[7][v & 255] ^ penstock_crc_table[6][(v >> 8) & 255]
              ^ penstock_crc_table[5][(v >> 16) & 255] ^ penstock_crc_table[4][(v >> 24) & 255]
              ^ penstock_crc_table[3][(v >> 32) & 255] ^ penstock_crc_table[2][(v >> 40) & 255]
              ^ penstock_crc_table[1][(v >> 48) & 255] ^ penstock_crc_table[0][v >> 56];
            p += 8; n -= 8;
        }
        while (n--) c = (c >> 8) ^ penstock_crc_table[0][(c ^ *p++) & 255];
        return c;
    }
    #ifdef PENSTOCK_FOLD
    /* One 128-bit lane moved over the next one: low half times the far constant, high half times the near. */
    #define PENSTOCK_FOLD_LANE(lane, k, next) _mm_xor_si128(_mm_xor_si128( \\
        _mm_clmulepi64_si128(lane, k, 0x00), _mm_clmulepi64_si128(lane, k, 0x11)), next)
    #define PENSTOCK_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
    /* Of these 48 bytes, the 16 from r on move a register's first r bytes to its end, those from 16 + r on its other
       bytes to its beginning; what they leave out becomes zero, and has its high bit set here. */
    static const unsigned char penstock_shifts[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
    /* Fold in the n bytes at p, before which there are at least 16 more. Whole blocks first. Of a rest of r bytes, as
       many move over a last block that the accumulator's other bytes and the rest make up: no byte goes through a
       table. Then 128 bits become 64, and those 32 by Barrett's method. */
    __attribute__((target("pclmul,sse4.1")))
    static inline uint32_t penstock_crc_finish(__m128i a, const unsigned char *p, size_t n) {
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const __m128i to_64 = _mm_set_epi64x(0, 0x163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
        __m128i t;
        while (n >= 16) { a = PENSTOCK_FOLD_LANE(a, by_128, PENSTOCK_LOAD(p)); p += 16; n -= 16; }
        if (n) {
            const __m128i others = PENSTOCK_LOAD(penstock_shifts + 16 + n);
            t = _mm_blendv_epi8(_mm_shuffle_epi8(a, others), PENSTOCK_LOAD(p + n - 16), others);
            a = _mm_shuffle_epi8(a, PENSTOCK_LOAD(penstock_shifts + n));
            a = PENSTOCK_FOLD_LANE(a, by_128, t);
        }
        t = _mm_clmulepi64_si128(a, by_128, 0x10);
        a = _mm_xor_si128(_mm_srli_si128(a, 8), t);
        t = _mm_srli_si128(a, 4);
        a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), to_64, 0x00), t);
        t = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
        t = _mm_clmulepi64_si128(_mm_and_si128(t, low_words), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
    }
    /* n is at least 16. Constants: x to the power of (distance + 32) and (distance - 32) modulo the polynomial,
       bit-reflected, for a fold over that distance in bits. */
    __attribute__((target("pclmul,sse4.1")))
    static inline uint32_t penstock_crc_fold(uint32_t c, const unsigned char *p, size_t n) {
        const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        __m128i a = _mm_xor_si128(PENSTOCK_LOAD(p), _mm_cvtsi32_si128((int)c)), b, d, e;
        if (n < 64) return penstock_crc_finish(a, p + 16, n - 16);
        b = PENSTOCK_LOAD(p + 16); d = PENSTOCK_LOAD(p + 32); e = PENSTOCK_LOAD(p + 48);
        p += 64; n -= 64;
        while (n >= 64) {
            a = PENSTOCK_FOLD_LANE(a, by_512, PENSTOCK_LOAD(p));
            b = PENSTOCK_FOLD_LANE(b, by_512, PENSTOCK_LOAD(p + 16));
            d = PENSTOCK_FOLD_LANE(d, by_512, PENSTOCK_LOAD(p + 32));
            e = PENSTOCK_FOLD_LANE(e, by_512, PENSTOCK_LOAD(p + 48));
            p += 64; n -= 64;
        }
        a = PENSTOCK_FOLD_LANE(a, by_128, b);
        a = PENSTOCK_FOLD_LANE(a, by_128, d);
        a = PENSTOCK_FOLD_LANE(a, by_128, e);
        return penstock_crc_finish(a, p, n);
    }
    /* The same with two lanes to a register: n is at least 128. With `to`, the bytes are copied there on
       the way: the loop waits for the multiplier anyway, so the copy costs next to nothing. */
    #define PENSTOCK_FOLD_PAIR(pair, k, next) _mm256_xor_si256(_mm256_xor_si256( \\
        _mm256_clmulepi64_epi128(pair, k, 0x00), _mm256_clmulepi64_epi128(pair, k, 0x11)), next)
    #define PENSTOCK_LOAD_PAIR(p) _mm256_loadu_si256((const __m256i *)(p))
    #define PENSTOCK_STORE_PAIR(p, v) _mm256_storeu_si256((__m256i *)(p), v)
    __attribute__((target("pclmul,sse4.1,avx2,vpclmulqdq")))
    static inline uint32_t penstock_crc_fold_wide(uint32_t c, const unsigned char *p, size_t n, unsigned char *to) {
        const __m256i by_1024 = _mm256_set_epi64x(0x14a7fe880, 0x1e88ef372, 0x14a7fe880, 0x1e88ef372);
        const __m256i by_256 = _mm256_set_epi64x(0x15a546366, 0x0f1da05aa, 0x15a546366, 0x0f1da05aa);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        __m256i a = PENSTOCK_LOAD_PAIR(p), b = PENSTOCK_LOAD_PAIR(p + 32);
        __m256i d = PENSTOCK_LOAD_PAIR(p + 64), e = PENSTOCK_LOAD_PAIR(p + 96), w, x, y, z;
        if (to) {
            PENSTOCK_STORE_PAIR(to, a); PENSTOCK_STORE_PAIR(to + 32, b);
            PENSTOCK_STORE_PAIR(to + 64, d); PENSTOCK_STORE_PAIR(to + 96, e);
            to += 128;
        }
        a = _mm256_xor_si256(a, _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)c));
        p += 128; n -= 128;
        while (n >= 128) {
            w = PENSTOCK_LOAD_PAIR(p); x = PENSTOCK_LOAD_PAIR(p + 32);
            y = PENSTOCK_LOAD_PAIR(p + 64); z = PENSTOCK_LOAD_PAIR(p + 96);
            if (to) {
                PENSTOCK_STORE_PAIR(to, w); PENSTOCK_STORE_PAIR(to + 32, x);
                PENSTOCK_STORE_PAIR(to + 64, y); PENSTOCK_STORE_PAIR(to + 96, z);
                to += 128;
            }
            a = PENSTOCK_FOLD_PAIR(a, by_1024, w);
            b = PENSTOCK_FOLD_PAIR(b, by_1024, x);
            d = PENSTOCK_FOLD_PAIR(d, by_1024, y);
            e = PENSTOCK_FOLD_PAIR(e, by_1024, z);
            p += 128; n -= 128;
        }
        if (to && n) memcpy(to, p, n);
        a = PENSTOCK_FOLD_PAIR(a, by_256, b);
        a = PENSTOCK_FOLD_PAIR(a, by_256, d);
        a = PENSTOCK_FOLD_PAIR(a, by_256, e);
        return penstock_crc_finish(PENSTOCK_FOLD_LANE(_mm256_castsi256_si128(a), by_128,
                                                      _mm256_extracti128_si256(a, 1)), p, n);
    }
    #endif
    static inline int32_t penstock_crc31(const unsigned char *p, Py_ssize_t at, Py_ssize_t count) {
        const uint32_t start = 0xFFFFFFFFu;
        const size_t n = (size_t)count;
        uint32_t c;
        p += at;
    #ifdef PENSTOCK_FOLD
        if (n >= 16 && penstock_can_fold)
            c = n >= 256 && penstock_can_fold_wide ? penstock_crc_fold_wide(start, p, n, 0)
                                                   : penstock_crc_fold(start, p, n);
        else
    #endif
            c = penstock_crc_tables(start, p, n);
        return (int32_t)(~c & 0x7FFFFFFFu);
    }
    /* Copy bytes and give their checksum. */
    static inline int32_t penstock_copy_crc31(unsigned char *to, Py_ssize_t to_at, const unsigned char *p, Py_ssize_t at,
                                              Py_ssize_t count) {
    #ifdef PENSTOCK_FOLD
        if (count >= 256 && penstock_can_fold_wide)
            return (int32_t)(~penstock_crc_fold_wide(0xFFFFFFFFu, p + at, (size_t)count, to + to_at) & 0x7FFFFFFFu);
    #endif
        memcpy(to + to_at, p + at, (size_t)count);
        return count ? penstock_crc31(p, at, count) : 0;
    }

    /* Java's String.hashCode over UTF-8. Eight ASCII bytes a round break the chain of multiplications: neighbours
       become pairs, pairs become fours, in one register. Beyond ASCII it decodes as Python's "replace" does: one
       U+FFFD for each maximal invalid part. */
    static inline int32_t penstock_java_hash(const unsigned char *s, Py_ssize_t at, Py_ssize_t count, int32_t seed) {
        const unsigned char *p = s + at, *end = p + count;
        uint32_t h = (uint32_t)seed;
        uint64_t v;
        while (p < end) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            if (end - p >= 8) {
                memcpy(&v, p, 8);
                if (!(v & 0x8080808080808080ull)) {
                    v = (v & 0x00FF00FF00FF00FFull) * 31u + ((v >> 8) & 0x00FF00FF00FF00FFull);
                    v = (v & 0x0000FFFF0000FFFFull) * 961u + ((v >> 16) & 0x0000FFFF0000FFFFull);
                    h = h * 2487512833u + (uint32_t)v * 923521u + (uint32_t)(v >> 32);
                    p += 8;
                    continue;
                }
            }
    #endif
            if (*p < 0x80) { h = h * 31u + *p++; continue; }
            {
                uint32_t lead = *p++, point = 0xFFFD;
                int more = lead >= 0xC2 && lead <= 0xDF ? 1 : (lead & 0xF0) == 0xE0 ? 2
                         : lead >= 0xF0 && lead <= 0xF4 ? 3 : 0;
                unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
                unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
                if (more) {
                    uint32_t got = lead & (0x3Fu >> more);
                    int i = 0;
                    while (i < more && p < end && *p >= low && *p <= high) {
                        got = got << 6 | (*p++ & 0x3Fu);
                        low = 0x80; high = 0xBF;
                        i++;
                    }
                    if (i == more) point = got;
                }
                if (point >= 0x10000) {
                    h = h * 31u + (0xD800u + ((point - 0x10000) >> 10));
                    h = h * 31u + (0xDC00u + ((point - 0x10000) & 0x3FFu));
                } else h = h * 31u + point;
            }
        }
        return (int32_t)h;
    }

    /* Ask for an object's first two cache lines ahead of their use: between two writes the kernel's copy has
       pushed them out of the nearest cache. */
    static inline void penstock_prefetch(PyObject *object) {
        __builtin_prefetch((const char *)object);
        __builtin_prefetch((const char *)object + 64);
    }

    /* The same for a record of some size at a place: all of a small one; of a large one both ends, between which the
       processor looks ahead by itself. */
    static inline void penstock_prefetch_at(const unsigned char *p, Py_ssize_t at, Py_ssize_t size) {
        const unsigned char *first = p + at, *last = first + size - 1, *stop;
        stop = size > 512 ? first + 256 : last;
        for (; first < stop; first += 64) __builtin_prefetch(first, 0, 2);
        __builtin_prefetch(last, 0, 2);
    }

    static inline void penstock_move(unsigned char *p, Py_ssize_t to, Py_ssize_t from, Py_ssize_t count) {
        memmove(p + to, p + from, (size_t)count);
    }

    /* Bytes of a file that get their pages in one step: see `write_ahead` in bits.py. */
    #define PENSTOCK_AHEAD 131072
    static unsigned char penstock_zeros[PENSTOCK_AHEAD];

    static inline int penstock_write_ahead(int fd, const unsigned char *p, Py_ssize_t count, int64_t position,
                                           int64_t room) {
        struct iovec parts[2];
        int64_t filled = (position + PENSTOCK_AHEAD - 1) / PENSTOCK_AHEAD * PENSTOCK_AHEAD;
        int64_t zeros = 0;
        if (position + count > filled) {
            zeros = PENSTOCK_AHEAD - (position + count) % PENSTOCK_AHEAD;
            if (zeros == PENSTOCK_AHEAD) zeros = 0;
            if (zeros > room - count) zeros = room - count;
        }
        while (count > 0) {
            ssize_t done;
            if (zeros > 0) {
                parts[0].iov_base = (void *)p; parts[0].iov_len = (size_t)count;
                parts[1].iov_base = penstock_zeros; parts[1].iov_len = (size_t)zeros;
                done = pwritev(fd, parts, 2, (off_t)position);
            } else {
                done = pwrite(fd, p, (size_t)count, (off_t)position);
            }
            if (done < 0) {
                if (errno == EINTR) continue;
                if (zeros > 0) { zeros = 0; continue; } /* without the zeros it may fit */
                return errno ? errno : EIO;
            }
            p += done; count -= done; position += done;
            zeros = 0;
        }
        return 0;
    }
    """
    int get_u8 "penstock_get_u8"(const unsigned char *p, Py_ssize_t pos) noexcept nogil
    int get_i16 "penstock_get_i16"(const unsigned char *p, Py_ssize_t pos) noexcept nogil
    int32_t get_i32 "penstock_get_i32"(const unsigned char *p, Py_ssize_t pos) noexcept nogil
    int64_t get_i64 "penstock_get_i64"(const unsigned char *p, Py_ssize_t pos) noexcept nogil
    void put_u8 "penstock_put_u8"(unsigned char *p, Py_ssize_t pos, int value) noexcept nogil
    void put_i16 "penstock_put_i16"(unsigned char *p, Py_ssize_t pos, int value) noexcept nogil
    void put_i32 "penstock_put_i32"(unsigned char *p, Py_ssize_t pos, int32_t value) noexcept nogil
    void put_i64 "penstock_put_i64"(unsigned char *p, Py_ssize_t pos, int64_t value) noexcept nogil
    int32_t get_own_i32 "penstock_get_own_i32"(const unsigned char *p, Py_ssize_t pos) noexcept nogil
    void put_own_i32 "penstock_put_own_i32"(unsigned char *p, Py_ssize_t pos, int32_t value) noexcept nogil
    void put_own_i64 "penstock_put_own_i64"(unsigned char *p, Py_ssize_t pos, int64_t value) noexcept nogil
    void copy_bytes "penstock_copy"(unsigned char *target, Py_ssize_t target_pos, const unsigned char *source,
                                    Py_ssize_t source_pos, Py_ssize_t count) noexcept nogil
    void move_bytes "penstock_move"(unsigned char *p, Py_ssize_t to, Py_ssize_t start,
                                    Py_ssize_t count) noexcept nogil
    bint same_bytes "penstock_same"(const unsigned char *a, Py_ssize_t a_pos, const unsigned char *b,
                                    Py_ssize_t b_pos, Py_ssize_t count) noexcept nogil
    Py_ssize_t find_byte "penstock_find"(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end,
                                         int value) noexcept nogil
    bint all_zero "penstock_all_zero"(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) noexcept nogil
    bint is_utf8 "penstock_is_utf8"(const unsigned char *p, Py_ssize_t pos, Py_ssize_t count) noexcept nogil
    int32_t crc31 "penstock_crc31"(const unsigned char *p, Py_ssize_t pos, Py_ssize_t count) noexcept nogil
    int32_t copy_crc31 "penstock_copy_crc31"(unsigned char *target, Py_ssize_t target_pos,
                                             const unsigned char *source, Py_ssize_t source_pos,
                                             Py_ssize_t count) noexcept nogil
    int32_t java_hash "penstock_java_hash"(const unsigned char *p, Py_ssize_t pos, Py_ssize_t count,
                                           int32_t seed) noexcept nogil
    void prefetch "penstock_prefetch"(object target) noexcept
    void prefetch_at "penstock_prefetch_at"(const unsigned char *p, Py_ssize_t pos,
                                            Py_ssize_t size) noexcept nogil
    int write_ahead "penstock_write_ahead"(int fd, const unsigned char *p, Py_ssize_t count, int64_t position,
                                           int64_t room) noexcept nogil

from cpython.bytearray cimport PyByteArray_FromStringAndSize


cdef inline bytearray new_buffer(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)
