// Attention over a cache of half floats, in single precision: each key and value is converted once for all the queries
// that look at it (the heads that share it, and the tokens of a batch).
//
// The order of every float operation on one query is the same whatever queries go with it, and cells it may not see
// change nothing, however many follow: a row evaluated in a batch has the very bits that it has alone.

#pragma once
#include <math.h>
#include <stdlib.h>

#define QUERIES 16  // of one key head, that are computed together
#define WIDEST 256  // values of a head
#define UNROLL_16 _Pragma("GCC unroll 16")

typedef struct {
    long width, n_keys, n_tokens, group;  // values of a head, cells, tokens, query heads for each key head
    float scale;
    const char *q, *k, *v, *mask;
    size_t q_token, q_head, k_cell, k_head, v_cell, v_head, mask_token;
    char * out;
    size_t out_head, out_token;
} attention;

// Sums of 16 registers, one in each lane of the result.
INLINE __m512 sums_of(__m512 a[16]) {
    UNROLL for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    UNROLL for (int i = 0; i < 4; i++) {
        __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
        a[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
#define FOLD(x, y) _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd))
    return FOLD(FOLD(a[0], a[1]), FOLD(a[2], a[3]));
#undef FOLD
}

// e^x for x <= 0, to about one unit in the last place; 0 below -87.
INLINE __m512 exp_negative(__m512 x) {
    const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.f), _CMP_GE_OQ);
    x = _mm512_maskz_mov_ps(seen, x);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    x = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    x = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), x);
    static const float c[] = { 1.f / 5040, 1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f };
    __m512 p = _mm512_set1_ps(c[0]);
    UNROLL for (int i = 1; i < 8; i++) p = _mm512_fmadd_ps(p, x, _mm512_set1_ps(c[i]));
    return _mm512_maskz_scalef_ps(seen, p, n);
}

INLINE __m512 half16(const char * p) { return _mm512_cvtph_ps(load256(p)); }
// 16 rows of half floats that lie `stride` bytes apart.
INLINE void as_floats(const char * p, size_t stride, long width, float * out) {
    for (int j = 0; j < 16; j++)
        for (long i = 0; i < width; i += 16) _mm512_store_ps(out + j * width + i, half16(p + j * stride + 2 * i));
}

// out += the 16 rows, each by its weight; `some` registers at a time, so that none waits for its last sum.
INLINE void add_rows(float * out, const float * rows, long width, const float * weights, const int some) {
    for (long i = 0; i < width; i += 16 * some) {
        __m512 o[8];
        UNROLL for (int c = 0; c < some; c++) o[c] = _mm512_loadu_ps(out + i + 16 * c);
        for (int j = 0; j < 16; j++) {
            const __m512 p = _mm512_set1_ps(weights[j]);
            UNROLL for (int c = 0; c < some; c++)
                o[c] = _mm512_fmadd_ps(p, _mm512_load_ps(rows + j * width + i + 16 * c), o[c]);
        }
        UNROLL for (int c = 0; c < some; c++) _mm512_storeu_ps(out + i + 16 * c, o[c]);
    }
}

// Queries first .. first + n of one key head (head by head, each with all its tokens). `room`: see attention_room.
static void attend(const attention * a, long head, long first, long n, float * room) {
    float * rows = room, * score = rows + 16 * a->width, * sum = score + QUERIES * a->n_keys;
    const float * query[QUERIES];
    const char * mask[QUERIES];
    float * out[QUERIES];
    for (long r = 0; r < n; r++) {
        const long h = head * a->group + (first + r) / a->n_tokens, t = (first + r) % a->n_tokens;
        query[r] = (const float *) (a->q + t * a->q_token + h * a->q_head);
        mask[r] = a->mask ? a->mask + t * a->mask_token : NULL;
        out[r] = (float *) (a->out + t * a->out_token + h * a->out_head);
    }
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
    __m512 top[QUERIES];
    for (long r = 0; r < n; r++) top[r] = nothing;
    for (long at = 0; at < a->n_keys; at += 16) {
        __mmask16 seen = 0;
        for (long r = 0; r < n; r++) {
            const __m512 m = mask[r] ? half16(mask[r] + 2 * at) : _mm512_setzero_ps();
            seen |= _mm512_cmp_ps_mask(m, nothing, _CMP_NEQ_OQ);
            _mm512_storeu_ps(score + r * a->n_keys + at, m);
        }
        if (!seen) continue;
        as_floats(a->k + at * a->k_cell + head * a->k_head, a->k_cell, a->width, rows);
        for (long r = 0; r < n; r++) {
            __m512 dots[16];
            UNROLL_16 for (int j = 0; j < 16; j++) dots[j] = _mm512_setzero_ps();
            for (long i = 0; i < a->width; i += 16) {
                const __m512 q = _mm512_loadu_ps(query[r] + i);
                UNROLL_16 for (int j = 0; j < 16; j++)
                    dots[j] = _mm512_fmadd_ps(q, _mm512_load_ps(rows + j * a->width + i), dots[j]);
            }
            float * to = score + r * a->n_keys + at;
            const __m512 s = _mm512_fmadd_ps(sums_of(dots), _mm512_set1_ps(a->scale), _mm512_loadu_ps(to));
            _mm512_storeu_ps(to, s);
            top[r] = _mm512_max_ps(top[r], s);
        }
    }
    for (long r = 0; r < n; r++) {
        const __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(top[r]));
        __m512 total = _mm512_setzero_ps();
        for (long at = 0; at < a->n_keys; at += 16) {
            float * s = score + r * a->n_keys + at;
            const __m512 p = exp_negative(_mm512_sub_ps(_mm512_loadu_ps(s), most));
            _mm512_storeu_ps(s, p);
            total = _mm512_add_ps(total, p);
        }
        sum[r] = _mm512_reduce_add_ps(total);
        memset(out[r], 0, a->width * sizeof(float));
    }
    for (long at = 0; at < a->n_keys; at += 16) {
        __mmask16 seen = 0;
        for (long r = 0; r < n; r++)
            seen |= _mm512_cmp_ps_mask(_mm512_loadu_ps(score + r * a->n_keys + at), _mm512_setzero_ps(), _CMP_GT_OQ);
        if (!seen) continue;
        as_floats(a->v + at * a->v_cell + head * a->v_head, a->v_cell, a->width, rows);
        for (long r = 0; r < n; r++) {
            const float * weights = score + r * a->n_keys + at;
            if (a->width % 128 == 0) add_rows(out[r], rows, a->width, weights, 8);
            else if (a->width % 64 == 0) add_rows(out[r], rows, a->width, weights, 4);
            else add_rows(out[r], rows, a->width, weights, 1);
        }
    }
    for (long r = 0; r < n; r++) {
        const __m512 share = _mm512_set1_ps(sum[r] > 0 ? 1 / sum[r] : 0);
        for (long i = 0; i < a->width; i += 16)
            _mm512_storeu_ps(out[r] + i, _mm512_mul_ps(_mm512_loadu_ps(out[r] + i), share));
    }
}

// Floats that `attend` needs, for a thread that keeps them.
static float * attention_room(const attention * a) {
    static _Thread_local float * room;
    static _Thread_local size_t size;
    const size_t need = sizeof(float) * (16 * a->width + QUERIES * a->n_keys + QUERIES);
    if (need > size) {
        free(room);
        size = (need + 65535) & ~(size_t) 65535;
        room = aligned_alloc(64, size);
        if (!room) abort();
    }
    return room;
}

// Thread `ith` of `nth`: its share of all key heads' queries, cut so that all threads have as many pieces.
static void attend_all(const attention * a, long n_heads, int ith, int nth) {
    const long queries = a->group * a->n_tokens;
    long parts = (queries + QUERIES - 1) / QUERIES;
    while (parts < queries && n_heads * parts % nth) parts++;
    for (long piece = ith; piece < n_heads * parts; piece += nth) {
        const long part = piece % parts, first = queries * part / parts, end = queries * (part + 1) / parts;
        attend(a, piece / parts, first, end - first, attention_room(a));
    }
}
