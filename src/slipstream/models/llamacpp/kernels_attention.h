// Attention over a cache of half floats, in single precision: each key and value is converted once for all the queries
// that look at it (the heads that share it, and the tokens of a batch).
//
// The order of every float operation on one query is the same whatever queries go with it, and cells it may not see
// change nothing, however many follow: a row evaluated in a batch has the very bits that it has alone.

#pragma once
#include <math.h>
#include <stdint.h>

#define QUERIES 16  // of one key head, that are computed together
#define WIDEST 256  // values of a head
#define CELLS 256   // whose scores are held at once
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

// out += 16 rows, each by its weight; those of no weight are left out, whatever they hold. `some` registers at a time, so
// that none waits for its last sum.
INLINE void add_rows(float * out, const float * rows, long width, const float * weights, const int some) {
    __m512 o[8];
    UNROLL for (int c = 0; c < some; c++) o[c] = _mm512_loadu_ps(out + 16 * c);
    for (int j = 0; j < 16; j++) {
        if (weights[j] == 0) continue;
        const __m512 p = _mm512_set1_ps(weights[j]);
        UNROLL for (int c = 0; c < some; c++)
            o[c] = _mm512_fmadd_ps(p, _mm512_load_ps(rows + j * width + 16 * c), o[c]);
    }
    UNROLL for (int c = 0; c < some; c++) _mm512_storeu_ps(out + 16 * c, o[c]);
}

// The scores of one query and 16 keys: `score` holds what its mask adds to each.
INLINE __m512 scores(const float * query, const float * rows, long width, float scale, __m512 score) {
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
    __m512 dots[16];
    UNROLL_16 for (int j = 0; j < 16; j++) dots[j] = _mm512_setzero_ps();
    for (long i = 0; i < width; i += 16) {
        const __m512 q = _mm512_loadu_ps(query + i);
        UNROLL_16 for (int j = 0; j < 16; j++)
            dots[j] = _mm512_fmadd_ps(q, _mm512_load_ps(rows + j * width + i), dots[j]);
    }
    const __mmask16 seen = _mm512_cmp_ps_mask(score, nothing, _CMP_NEQ_OQ);
    return _mm512_mask_mov_ps(score, seen, _mm512_fmadd_ps(sums_of(dots), _mm512_set1_ps(scale), score));
}

// What one query has seen so far: the largest score, and the sums of the weights in 16 lanes.
typedef struct {
    const float * q;
    const char * mask;
    float * out;
    float most;
    __m512 sum;
} row;

// Makes weights of the scores of up to CELLS cells, and brings what is in `r` to the new largest score; query `i` sees
// something of a block where its bit in `live` is set. False: it sees none.
static bool weigh(row * r, float * score, long n, __m512 top, long width, const uint16_t * live, long i) {
    const float most = fmaxf(r->most, _mm512_reduce_max_ps(top));
    if (most == -INFINITY) return false;
    const __m512 new_most = _mm512_set1_ps(most);
    if (most > r->most) {
        const __m512 factor = exp_negative(_mm512_sub_ps(_mm512_set1_ps(r->most), new_most));
        r->sum = _mm512_mul_ps(r->sum, factor);
        for (long c = 0; c < width; c += 16)
            _mm512_storeu_ps(r->out + c, _mm512_mul_ps(_mm512_loadu_ps(r->out + c), factor));
    }
    for (long at = 0; at < n; at += 16) {
        if (!(live[at / 16] >> i & 1)) continue;
        const __m512 p = exp_negative(_mm512_sub_ps(_mm512_loadu_ps(score + at), new_most));
        _mm512_storeu_ps(score + at, p);
        r->sum = _mm512_add_ps(r->sum, p);
    }
    r->most = most;
    return true;
}

// Queries first .. first + n of one key head (head by head, each with all its tokens), CELLS cells at a time.
static void attend(const attention * a, long head, long first, long n) {
    _Alignas(64) float score[QUERIES * CELLS], rows[16 * WIDEST];
    row row_of[QUERIES];
    for (long i = 0; i < n; i++) {
        const long h = head * a->group + (first + i) / a->n_tokens, t = (first + i) % a->n_tokens;
        row_of[i] = (row) {
            (const float *) (a->q + t * a->q_token + h * a->q_head), a->mask ? a->mask + t * a->mask_token : NULL,
            (float *) (a->out + t * a->out_token + h * a->out_head), -INFINITY, _mm512_setzero_ps(),
        };
        memset(row_of[i].out, 0, a->width * sizeof(float));
    }
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
    const __m256i hidden = _mm256_set1_epi16((short) 0xfc00);  // minus infinity as a half
    for (long base = 0; base < a->n_keys; base += CELLS) {
        const long cells = a->n_keys - base < CELLS ? a->n_keys - base : CELLS;
        uint16_t live[CELLS / 16] = { 0 };  // a bit for each query: other sequences' cells are not its business
        bool sees[QUERIES], any = false;
        __m512 top[QUERIES];
        for (long i = 0; i < n; i++) top[i] = nothing;
        for (long at = 0; at < cells; at += 16) {
            for (long i = 0; i < n; i++) {
                const char * mask = row_of[i].mask ? row_of[i].mask + 2 * (base + at) : NULL;
                if (mask && _mm256_cmpeq_epi16_mask(load256(mask), hidden) == 0xffff) continue;
                live[at / 16] |= 1u << i;
                _mm512_store_ps(score + i * CELLS + at, mask ? half16(mask) : _mm512_setzero_ps());
            }
            if (!live[at / 16]) continue;
            as_floats(a->k + (base + at) * a->k_cell + head * a->k_head, a->k_cell, a->width, rows);
            for (long i = 0; i < n; i++) {
                if (!(live[at / 16] >> i & 1)) continue;
                float * to = score + i * CELLS + at;
                const __m512 s = scores(row_of[i].q, rows, a->width, a->scale, _mm512_load_ps(to));
                _mm512_store_ps(to, s);
                top[i] = _mm512_max_ps(top[i], s);
            }
        }
        for (long i = 0; i < n; i++)
            any |= sees[i] = weigh(&row_of[i], score + i * CELLS, cells, top[i], a->width, live, i);
        for (long at = 0; any && at < cells; at += 16) {
            if (!live[at / 16]) continue;
            as_floats(a->v + (base + at) * a->v_cell + head * a->v_head, a->v_cell, a->width, rows);
            for (long i = 0; i < n; i++) {
                if (!sees[i] || !(live[at / 16] >> i & 1)) continue;
                long c = 0;
                for (; c + 64 <= a->width; c += 64)
                    add_rows(row_of[i].out + c, rows + c, a->width, score + i * CELLS + at, 4);
                for (; c < a->width; c += 16)
                    add_rows(row_of[i].out + c, rows + c, a->width, score + i * CELLS + at, 1);
            }
        }
    }
    for (long i = 0; i < n; i++) {
        const float sum = _mm512_reduce_add_ps(row_of[i].sum);
        const __m512 share = _mm512_set1_ps(sum > 0 ? 1 / sum : 0);
        for (long c = 0; c < a->width; c += 16)
            _mm512_storeu_ps(row_of[i].out + c, _mm512_mul_ps(_mm512_loadu_ps(row_of[i].out + c), share));
    }
}

// Thread `ith` of `nth`: its share of all key heads' queries, cut so that all threads have as many pieces.
static void attend_all(const attention * a, long n_heads, int ith, int nth) {
    const long queries = a->group * a->n_tokens;
    long parts = (queries + QUERIES - 1) / QUERIES;
    while (parts < queries && n_heads * parts % nth) parts++;
    for (long piece = ith; piece < n_heads * parts; piece += nth) {
        const long part = piece % parts, first = queries * part / parts, end = queries * (part + 1) / parts;
        attend(a, piece / parts, first, end - first);
    }
}
