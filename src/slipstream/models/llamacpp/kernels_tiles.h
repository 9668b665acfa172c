// The arithmetic of kernels.c: activations in 8 bits, weights unpacked 8 rows at a time, and their products.
//
// The shape of all kernels. A `tile` is 8 rows by 8 values: one 64-byte register whose qword r holds row r. A token's 8
// activations are broadcast to all qwords, so an int32 lane (r, h) sums row r's values 4h..4h+3. Lanes (r, 0) and
// (r, 1) are kept apart, also as floats, until the row is done.
// The order of every float operation on one output is the same for any number of tokens and threads: a row evaluated
// in a batch has the very bits that it has alone. (Compiled with -ffp-contract=off.)
//
// Weight formats: ggml-common.h and repack.h of llama.cpp (MIT); the names here are theirs.

#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

// ---- Activations: rows of floats, quantised to 8 bits -------------------------------------------------------------

// n rows of k values. `qs`: the quants. `d`: a scale for each block of 256 (K types) or 32 values.
// `aux`: 8 bytes for each group, broadcast like the quants; what it holds depends on the weights' type.
typedef struct {
    long n, k;
    int block, group;
    int8_t * qs;
    float * d;
    uint64_t * aux;
} acts;

static size_t acts_layout(acts * a, void * memory) {
    size_t qs = (size_t) a->n * a->k, aux = qs / a->group * 8, d = qs / a->block * 4;
    uint8_t * p = (uint8_t *) (((uintptr_t) memory + 63) & ~(uintptr_t) 63);
    a->qs = (int8_t *) p;
    a->aux = (uint64_t *) (p + qs);
    a->d = (float *) (p + qs + aux);
    return qs + aux + d + 64;
}

INLINE float half_rounded(float x) { return _cvtsh_ss(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }

INLINE float max_abs(const float * x, int n) {
    __m512 top = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) top = _mm512_max_ps(top, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(top);
}

INLINE void round_all(const float * x, float scale, int8_t * qs, int n) {
    for (int i = 0; i < n; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale)));
        _mm_storeu_si128((__m128i *) (qs + i), _mm512_cvtsepi32_epi8(v));
    }
}

// As quantize_row_q8_K: the value of the largest magnitude (the first of them) becomes -127.
static float quantize_256(const float * x, int8_t * qs) {
    float top = max_abs(x, 256);
    if (!(top > 0)) {
        memset(qs, 0, 256);
        return 0;
    }
    int i = 0;
    while (x[i] != top && x[i] != -top) i++;
    float scale = -127.f / x[i];
    round_all(x, scale, qs, 256);
    return 1 / scale;
}

// As quantize_row_q8_0 (AVX2): the largest magnitude becomes 127; the scale that is kept went through half precision.
static float quantize_32(const float * x, int8_t * qs) {
    float top = max_abs(x, 32);
    round_all(x, top != 0 ? 127.f / top : 0, qs, 32);
    return top / 127.f;
}

// Sums of 8 qs-lanes apart: int32 (values with index % 8 < 4), int32 (the others).
INLINE __m128i half_sums(__m128i fours) { return _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e)); }
INLINE __m128i fours_16(const int8_t * qs) {
    return _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), _mm_loadu_si128((const __m128i *) qs));
}
INLINE __m128i sums_32(const int8_t * qs) { return half_sums(_mm_add_epi32(fours_16(qs), fours_16(qs + 16))); }
INLINE uint64_t low64(__m128i v) { return (uint64_t) _mm_cvtsi128_si64(v); }

// aux for Q4_K: the sums of 32 quants each, as int16 pairs for min_lanes: (0, 1) twice, (2, 3) twice, ...
static void aux_sums(int8_t * qs, float d, uint64_t * aux) {
    (void) d;
    for (int j = 0; j < 4; j++, qs += 64) {
        __m128i a = sums_32(qs), b = sums_32(qs + 32);
        uint64_t two = (uint16_t) (_mm_cvtsi128_si32(a) + _mm_extract_epi32(a, 1));
        two |= (uint64_t) (uint16_t) (_mm_cvtsi128_si32(b) + _mm_extract_epi32(b, 1)) << 16;
        aux[j] = two | two << 32;
    }
}

// Q6_K's quants are signed, so that the activations have to be the unsigned ones: 128 too high.
static void aux_unsigned(int8_t * qs, float d, uint64_t * aux) {
    (void) d, (void) aux;
    for (int i = 0; i < 256; i++) qs[i] ^= (int8_t) 0x80;
}

// aux for types whose unsigned quants are too high by an offset: where the sums of products start, -offset * sum(qs).
INLINE void start_32(const int8_t * qs, uint64_t * aux, int offset) {
    *aux = low64(_mm_mullo_epi32(sums_32(qs), _mm_set1_epi32(-offset)));
}
static void aux_start_40(int8_t * qs, float d, uint64_t * aux) { (void) d, start_32(qs, aux, 8); }
static void aux_start_50(int8_t * qs, float d, uint64_t * aux) { (void) d, start_32(qs, aux, 16); }
static void aux_start_80(int8_t * qs, float d, uint64_t * aux) { (void) d, start_32(qs, aux, 128); }

// aux for Q4_1: the float that a block's minimum is multiplied with, in lane h = 0 (as quantize_row_q8_1).
static void aux_scaled_sum(int8_t * qs, float d, uint64_t * aux) {
    __m128i s = sums_32(qs);
    float scaled = half_rounded(d * (float) (_mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 1)));
    *aux = (uint32_t) _mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(scaled)));
}

// ---- Weights: unpacking 8 rows ------------------------------------------------------------------------------------

INLINE __m512i load512(const void * p) { return _mm512_loadu_si512(p); }
INLINE __m256i load256(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
INLINE __m128i load128(const void * p) { return _mm_loadu_si128((const __m128i *) p); }
INLINE uint64_t load64(const void * p) { uint64_t v; memcpy(&v, p, 8); return v; }
INLINE __m512i bytes(int v) { return _mm512_set1_epi8((char) v); }
INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, bytes(15)); }
INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
INLINE __m512i spread(uint64_t v) { return _mm512_set1_epi64((long long) v); }

// x[i] holds 32 bytes of row i and of row i + 4; t[q] becomes the tile of the rows' q-th qwords.
INLINE void transpose(const __m512i x[4], __m512i t[4]) {
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    __m512i a = _mm512_unpacklo_epi64(x[0], x[1]), b = _mm512_unpackhi_epi64(x[0], x[1]);
    __m512i c = _mm512_unpacklo_epi64(x[2], x[3]), d = _mm512_unpackhi_epi64(x[2], x[3]);
    t[0] = _mm512_permutex2var_epi64(a, even, c);
    t[1] = _mm512_permutex2var_epi64(b, even, d);
    t[2] = _mm512_permutex2var_epi64(a, odd, c);
    t[3] = _mm512_permutex2var_epi64(b, odd, d);
}
INLINE __m512i pair(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

// Four tiles: 32 bytes from each of 8 rows that are s bytes apart.
INLINE void tiles_32(const uint8_t * p, size_t s, __m512i t[4]) {
    __m512i x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = pair(load256(p + i * s), load256(p + (i + 4) * s));
    transpose(x, t);
}
// Two tiles: 16 bytes from each row.
INLINE __m256i two_rows(const uint8_t * p, size_t s) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(p + 2 * s), 1);
}
INLINE void tiles_16(const uint8_t * p, size_t s, __m512i t[2]) {
    __m512i even = pair(two_rows(p, s), two_rows(p + 4 * s, s));
    __m512i odd = pair(two_rows(p + s, s), two_rows(p + 5 * s, s));
    t[0] = _mm512_unpacklo_epi64(even, odd);
    t[1] = _mm512_unpackhi_epi64(even, odd);
}
// One tile: 8 bytes from each row.
INLINE __m512i tile_8(const uint8_t * p, size_t s) {
#define AT(i) (long long) load64(p + (i) * s)
    return _mm512_setr_epi64(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7));
#undef AT
}
// Fetches into the second-level cache. Nothing may be left out: one line that comes late costs a quarter of the time.
INLINE void fetch_stream(const uint8_t * p, int bytes) {
    UNROLL for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *) p + i, _MM_HINT_T1);
}
// A block's share of the next 8 rows, which follow these 8 in memory: the hardware does not see eight short streams, but
// this one it does.
INLINE void fetch_ahead(const uint8_t * w, size_t s, long block, int bytes) {
    fetch_stream(w + 8 * s + 8 * block * bytes, 8 * bytes);
}
// 8 half floats, one a row, as floats in both lanes of the row.
INLINE __m512 rows_ps(__m128i halves) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_cvtph_ps(halves)));
}
// The same in the order of packed sums.
INLINE __m512 packed_rows_ps(__m128i halves) {
    const __m512i twice = _mm512_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_cvtph_ps(halves)));
}
// Adds the two lanes of each row and stores 8 outputs.
INLINE void finish(__m512 sum, float * out) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1));
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sum)));
}
INLINE void finish_packed(__m512 sum, float * out) {
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13);
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0x4e));
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sum)));
}

// ---- Kernels: 8 rows by nc tokens, the first of which is c --------------------------------------------------------

#define ARGS const uint8_t *w, size_t s, const acts *a, long c, float *out, size_t out_stride
#define EACH UNROLL for (int i = 0; i < nc; i++)
#define KERNEL(name)                                                                                \
    static void name(int nc, ARGS) {                                                                \
        switch (nc) {                                                                               \
            case 1: name##_n(1, w, s, a, c, out, out_stride); break;                                \
            case 2: name##_n(2, w, s, a, c, out, out_stride); break;                                \
            case 3: name##_n(3, w, s, a, c, out, out_stride); break;                                \
            case 4: name##_n(4, w, s, a, c, out, out_stride); break;                                \
            case 5: name##_n(5, w, s, a, c, out, out_stride); break;                                \
            case 6: name##_n(6, w, s, a, c, out, out_stride); break;                                \
            case 7: name##_n(7, w, s, a, c, out, out_stride); break;                                \
            default: name##_n(8, w, s, a, c, out, out_stride);                                      \
        }                                                                                           \
    }

// sum + the products of `count` tiles with token values q, q + 8, ...
INLINE __m512i dot(__m512i sum, const __m512i * tiles, int count, const int8_t * q) {
    UNROLL for (int j = 0; j < count; j++) sum = _mm512_dpbusd_epi32(sum, tiles[j], spread(load64(q + 8 * j)));
    return sum;
}

// The types with blocks of 32. UNPACK sets t[4] (tiles of unsigned quants) and D (scales) from block b.
#define KERNEL_32(name, UNPACK, FROM_MIN)                                                                              \
    INLINE void name##_n(const int nc, ARGS) {                                                                         \
        (void) s;                                                                                                      \
        const long nb = a->k / 32;                                                                                     \
        __m512 sum[8];                                                                                                 \
        EACH sum[i] = _mm512_setzero_ps();                                                                             \
        for (long b = 0; b < nb; b++) {                                                                                \
            __m512i t[4];                                                                                              \
            __m512 D, M = _mm512_setzero_ps();                                                                         \
            UNPACK;                                                                                                    \
            EACH {                                                                                                     \
                const long at = (c + i) * nb + b;                                                                      \
                __m512i aux = spread(a->aux[at]);                                                                      \
                __m512i p = dot(FROM_MIN ? _mm512_setzero_si512() : aux, t, 4, a->qs + at * 32);                       \
                sum[i] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(p), D), _mm512_set1_ps(a->d[at]), sum[i]);   \
                if (FROM_MIN) sum[i] = _mm512_fmadd_ps(M, _mm512_castsi512_ps(aux), sum[i]);                           \
            }                                                                                                          \
        }                                                                                                              \
        EACH finish(sum[i], out + i * out_stride);                                                                     \
    }                                                                                                                  \
    KERNEL(name)

INLINE void split_nibbles(__m512i t[4]) {
    t[2] = high_nibbles(t[0]), t[3] = high_nibbles(t[1]);
    t[0] = low_nibbles(t[0]), t[1] = low_nibbles(t[1]);
}
// block_q4_0x8: half d[8]; quants of 8 rows, 8 bytes at a time, with the top bit of each nibble turned over.
#define UNPACK_40X8                                                                    \
    const uint8_t * p = w + b * 144;                                                   \
    D = rows_ps(load128(p));                                                           \
    t[0] = _mm512_xor_si512(load512(p + 16), bytes(0x88));                             \
    t[1] = _mm512_xor_si512(load512(p + 80), bytes(0x88));                             \
    split_nibbles(t);                                                                  \
    _mm_prefetch((const char *) p + 1536, _MM_HINT_T0);                                \
    _mm_prefetch((const char *) p + 1600, _MM_HINT_T0);
// block_q4_1: half d, m; 16 bytes of nibbles, value l and l + 16.
#define UNPACK_41                                                                      \
    const uint8_t * p = w + b * 20;                                                    \
    fetch_ahead(w, s, b, 20);                                                          \
    __m512i head = tile_8(p, s);                                                       \
    D = rows_ps(_mm512_cvtepi64_epi16(head));                                          \
    M = rows_ps(_mm512_cvtepi64_epi16(_mm512_srli_epi64(head, 16)));                   \
    tiles_16(p + 4, s, t);                                                             \
    split_nibbles(t);
// block_q5_0: half d; uint32 of fifth bits; 16 bytes of nibbles.
#define UNPACK_50                                                                      \
    const uint8_t * p = w + b * 22;                                                    \
    fetch_ahead(w, s, b, 22);                                                          \
    __m512i head = tile_8(p, s);                                                       \
    D = rows_ps(_mm512_cvtepi64_epi16(head));                                          \
    tiles_16(p + 6, s, t);                                                             \
    split_nibbles(t);                                                                  \
    UNROLL for (int j = 0; j < 4; j++) {                                               \
        __m128i pick = _mm_set_epi64x((10 + j) * 0x0101010101010101, (2 + j) * 0x0101010101010101);                    \
        __m512i high = _mm512_shuffle_epi8(head, _mm512_broadcast_i32x4(pick));        \
        __mmask64 set = _mm512_test_epi8_mask(high, spread(0x8040201008040201));       \
        t[j] = _mm512_mask_add_epi8(t[j], set, t[j], bytes(16));                       \
    }
// block_q8_0: half d; 32 signed bytes.
#define UNPACK_80                                                                      \
    const uint8_t * p = w + b * 34;                                                    \
    fetch_ahead(w, s, b, 34);                                                          \
    D = rows_ps(_mm512_cvtepi64_epi16(tile_8(p, s)));                                  \
    tiles_32(p + 2, s, t);                                                             \
    UNROLL for (int j = 0; j < 4; j++) t[j] = _mm512_xor_si512(t[j], bytes(0x80));

KERNEL_32(q4_0x8, UNPACK_40X8, 0)
KERNEL_32(q4_1, UNPACK_41, 1)
KERNEL_32(q5_0, UNPACK_50, 0)
KERNEL_32(q8_0, UNPACK_80, 0)

// Two sub-blocks' products, which fit 16 bits, each times its scale. Packing brings the lanes of rows 2L and 2L + 1, of
// the first and of the second sub-block, into this order: first of 2L, first of 2L + 1, second of 2L, second of 2L + 1.
// From here on a lane holds a row's values of every other sub-block.
INLINE __m512i scaled(__m512i sum, __m512i first, __m512i second, __m512i scales) {
    return _mm512_dpwssd_epi32(sum, _mm512_packs_epi32(first, second), scales);
}
// Per 128 bits the bytes or 16-bit numbers that `low` and `high` name: 8 numbers of 16 bits each.
INLINE __m512i pick(__m512i v, uint64_t low, uint64_t high) {
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(_mm_set_epi64x((long long) high, (long long) low)));
}

// The 6-bit scales and mins of block_q4_Kx8 (12 bytes for each sub-block). Byte 2 i + r % 2 of 128-bit lane r / 2 is
// that of sub-block i and row r.
INLINE void scales_4Kx8(const uint8_t * p, __m512i * scales, __m512i * mins) {
    const __m512i ab = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 1, 4, 7, 10, 13, 16, 19, 22);
    const __m512i cc = _mm512_setr_epi32(2, 5, 8, 11, 14, 17, 20, 23, 2, 5, 8, 11, 14, 17, 20, 23);
    const __m512i first = _mm512_setr_epi64(0, 2, 1, 3, 8, 10, 9, 11);
    __m512i x = load512(p), y = _mm512_castsi256_si512(load256(p + 64));
    __m512i AB = _mm512_permutex2var_epi32(x, ab, y), C = _mm512_permutex2var_epi32(x, cc, y);
    C = low_nibbles(_mm512_srlv_epi64(C, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)));
    __m512i low = _mm512_and_si512(AB, bytes(63));  // rows 0..3 of each sub-block's scales, then mins
    __m512i high = _mm512_or_si512(C, _mm512_and_si512(_mm512_srli_epi32(AB, 2), bytes(48)));  // rows 4..7
    low = pick(low, 0x0d0c090805040100, 0x0f0e0b0a07060302);
    high = pick(high, 0x0d0c090805040100, 0x0f0e0b0a07060302);
    *scales = _mm512_permutex2var_epi64(low, first, high);
    *mins = _mm512_permutex2var_epi64(low, _mm512_add_epi64(first, _mm512_set1_epi64(4)), high);
}
// The scales of sub-blocks 2j and 2j + 1, in the order of packed sums, each twice.
INLINE __m512i scale_lanes(__m512i scales, int j) {
    const uint64_t step = 0x0004000400040004ull * j;
    return pick(scales, 0x8001800180008000ull + step, 0x8003800380028002ull + step);
}
// The mins of sub-blocks 4u..4u + 3, in the order of packed sums: two in each lane.
INLINE __m512i min_lanes(__m512i mins, int u) {
    const uint64_t step = 0x0008000800080008ull * u;
    return pick(mins, 0x8003800180028000ull + step, 0x8007800580068004ull + step);
}

// block_q4_Kx8: half d[8], dmin[8]; 96 bytes of scales and mins; quants of 8 rows, 8 bytes at a time. Bytes 32j..32j+31
// of a row hold its sub-blocks 2j (low nibbles) and 2j + 1. A lane's product is at most 16 * 15 * 127: it fits 16 bits.
INLINE void q4_Kx8_n(const int nc, ARGS) {
    (void) s;
    const long nb = a->k / 256;
    __m512 sum[8];
    EACH sum[i] = _mm512_setzero_ps();
    for (long b = 0; b < nb; b++) {
        const uint8_t * p = w + b * 1152;
        __m512i scales, mins, isum[8];
        scales_4Kx8(p + 32, &scales, &mins);
        EACH isum[i] = _mm512_setzero_si512();
        UNROLL for (int j = 0; j < 4; j++) {
            fetch_stream(p + 3456 + 288 * j, 288);
            __m512i low[4], high[4];
            UNROLL for (int v = 0; v < 4; v++) {
                __m512i q = load512(p + 128 + 64 * (4 * j + v));
                low[v] = low_nibbles(q), high[v] = high_nibbles(q);
            }
            const __m512i scale = scale_lanes(scales, j);
            EACH {
                const int8_t * q = a->qs + (c + i) * a->k + b * 256 + 64 * j;
                const __m512i zero = _mm512_setzero_si512();
                isum[i] = scaled(isum[i], dot(zero, low, 4, q), dot(zero, high, 4, q + 32), scale);
            }
        }
        const __m512 D = packed_rows_ps(load128(p)), M = packed_rows_ps(load128(p + 16));
        const __m512i m0 = min_lanes(mins, 0), m1 = min_lanes(mins, 1);
        EACH {
            const uint64_t * aux = a->aux + ((c + i) * nb + b) * 4;
            __m512i least = _mm512_madd_epi16(m0, _mm512_broadcast_i32x4(load128(aux)));
            least = _mm512_dpwssd_epi32(least, m1, _mm512_broadcast_i32x4(load128(aux + 2)));
            __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(isum[i]), D);
            part = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(least), M, part);
            sum[i] = _mm512_fmadd_ps(part, _mm512_set1_ps(a->d[(c + i) * nb + b]), sum[i]);
        }
    }
    EACH finish_packed(sum[i], out + i * out_stride);
}
KERNEL(q4_Kx8)

// Low nibbles with the n-th pair of bits of each byte above them, less 32.
INLINE __m512i signed_6(__m512i nibbles, __m512i pairs, int n) {
    __m512i top = n == 3 ? _mm512_srli_epi16(pairs, 2) : _mm512_slli_epi16(pairs, n == 2 ? 0 : 4 - 2 * n);
    return _mm512_sub_epi8(_mm512_or_si512(nibbles, _mm512_and_si512(top, bytes(48))), bytes(32));
}
// start + the products of two tiles of signed quants with 16 unsigned activations.
INLINE __m512i dot_unsigned(__m512i start, const __m512i * tiles, __m512i low, __m512i high) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, low, tiles[0]), high, tiles[1]);
}
// What 128 in each activation adds, to be taken off.
INLINE __m512i start_of(const __m512i * tiles) {
    return _mm512_sub_epi32(_mm512_setzero_si512(), dot_unsigned(_mm512_setzero_si512(), tiles, bytes(128), bytes(128)));
}
// The signed scales of two groups of 16 values (8 rows each), in the order of packed sums, each twice.
INLINE __m512i group_lanes(const uint8_t * p) {
    const long long one = 0x0001000100010001, A = 0x0001000100000000, B = 0x0009000900080008;
    const __m512i order = _mm512_setr_epi64(A, B, A + 2 * one, B + 2 * one, A + 4 * one, B + 4 * one, A + 6 * one, B + 6 * one);
    return _mm512_permutexvar_epi16(order, _mm512_castsi256_si512(_mm256_cvtepi8_epi16(load128(p))));
}

// block_q6_Kx8: half d[8]; 16 signed scales of 8 rows; 128 bytes of low nibbles and 64 of high bit pairs a row, 8 rows in
// turn, 8 bytes at a time. In each half of 128 values, byte l of 64 holds values l and l + 64, and byte l of 32 bit pairs
// those of l, l + 32, l + 64, l + 96. A lane's product, a sum of 8 values in -32..31 times -127..127, fits 16 bits.
INLINE void q6_Kx8_n(const int nc, ARGS) {
    (void) s;
    const long nb = a->k / 256;
    __m512 sum[8];
    EACH sum[i] = _mm512_setzero_ps();
    for (long b = 0; b < nb; b++) {
        const uint8_t * p = w + b * 1680;
        __m512i isum[8];
        EACH isum[i] = _mm512_setzero_si512();
        UNROLL for (int part = 0; part < 4; part++) {  // half of the block, side of the half
            const int half = part / 2, side = part % 2;
            fetch_stream(p + 3360 + 420 * part, 420);
            __m512i q[4], h[4];
            UNROLL for (int v = 0; v < 4; v++) {
                const uint8_t * low = p + 144 + 64 * (4 * part + v), * high = p + 1168 + 64 * (4 * half + v);
                q[v] = load512(low), h[v] = load512(high);
            }
            UNROLL for (int up = 0; up < 2; up++) {
                const int first = 8 * half + 4 * up + 2 * side;  // group of 16 values
                __m512i t[4];
                UNROLL for (int v = 0; v < 4; v++)
                    t[v] = signed_6(up ? high_nibbles(q[v]) : low_nibbles(q[v]), h[v], 2 * up + side);
                const __m512i scale = group_lanes(p + 16 + 8 * first), one = start_of(t), two = start_of(t + 2);
                EACH {
                    const int8_t * x = a->qs + (c + i) * a->k + b * 256 + first * 16;
                    const __m512i A = dot_unsigned(one, t, spread(load64(x)), spread(load64(x + 8)));
                    const __m512i B = dot_unsigned(two, t + 2, spread(load64(x + 16)), spread(load64(x + 24)));
                    isum[i] = scaled(isum[i], A, B, scale);
                }
            }
        }
        const __m512 D = packed_rows_ps(load128(p));
        EACH {
            const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(isum[i]), D);
            sum[i] = _mm512_fmadd_ps(part, _mm512_set1_ps(a->d[(c + i) * nb + b]), sum[i]);
        }
    }
    EACH finish_packed(sum[i], out + i * out_stride);
}
KERNEL(q6_Kx8)
