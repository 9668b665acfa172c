// Attention over a cache of half floats, in single precision: each key and value is converted once for all the queries
// that look at it (the heads that share it, and the tokens of a batch).
//
// The order of every float operation on one query is the same whatever queries go with it, and cells it may not see
// change nothing, however many there are. Where the lists of kernels_order.h are given, it does not depend on where
// the cells lie either: a row evaluated in a batch, in a tree or beside others has the very bits that it has alone.

#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define QUERIES 16  // of one key head, that are computed together
#define WIDEST 256  // values of a head
#define CELLS 256   // whose scores are held at once
#define AHEAD 16    // cells; most lie one behind the other
#define UNROLL_16 _Pragma("GCC unroll 16")

typedef struct {
    long width, n_keys, n_tokens, group;  // values of a head, cells, tokens, query heads for each key head
    float scale;
    const char *q, *k, *v, *mask;
    size_t q_token, q_head, k_cell, k_head, v_cell, v_head, mask_token;
    char * out;
    size_t out_head, out_token;
    const int32_t * const * cells; // of each token, in the order in which they are taken; NULL: as they lie
    const int32_t * n_cells;
    ptrdiff_t shift; // what is added to each list
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
// 16 cells' rows of half floats.
INLINE void as_floats(const char * p, size_t stride, __m512i cells, long width, float * out) {
    _Alignas(64) uint32_t cell[16];
    _mm512_store_si512(cell, cells);
    for (int j = 0; j < 16; j++) {
        const char * row = p + cell[j] * stride, * later = row + AHEAD * stride;
        for (long i = 0; i < width; i += 32) _mm_prefetch(later + 2 * i, _MM_HINT_T0);
        for (long i = 0; i < width; i += 16) _mm512_store_ps(out + j * width + i, half16(row + 2 * i));
    }
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
    const int32_t * cells;
    long n, reach; // cells of its list that it sees, and that any query of the piece does
    float * out;
    float most;
    __m512 sum;
    __m512i seen; // a checksum of all that its mask lets it see
} row;

INLINE __m512i from(long first) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(_mm512_set1_epi32((int) first), lanes);
}
// Which of the 16 from `at` on are among the first n.
INLINE __mmask16 among(long n, long at) { return n <= at ? 0 : n - at >= 16 ? 0xffff : (1u << (n - at)) - 1; }

// 16 cells of a list. `first` where they lie one behind the other from there on, else -1.
typedef struct {
    const int32_t * list;
    __m512i cells;
    long first;
} sixteen;

INLINE sixteen cells_at(const row * r, long at, long n_keys) {
    if (!r->cells) return (sixteen) { NULL, from(at), at + 16 <= n_keys ? at : -1 };
    const __mmask16 some = among(r->reach, at);
    const __m512i cells = _mm512_maskz_loadu_epi32(some, r->cells + at);
    const long first = _mm_cvtsi128_si32(_mm512_castsi512_si128(cells));
    const bool run = !(some & ~_mm512_cmpeq_epi32_mask(cells, from(first))) && first >= 0 && first + 16 <= n_keys;
    return (sixteen) { r->cells, cells, run ? first : -1 };
}

// What the mask adds to the scores of 16 cells, as half floats: minus infinity for what is hidden or not there.
INLINE __m256i mask_of(const char * mask, const sixteen * c, __mmask16 some, long n_keys) {
    const __m256i hidden = _mm256_set1_epi16((short) 0xfc00);
    if (!mask) return _mm256_mask_mov_epi16(hidden, some, _mm256_setzero_si256());
    if (c->first >= 0) return _mm256_mask_mov_epi16(hidden, some, load256(mask + 2 * c->first));
    some &= _mm512_cmplt_epu32_mask(c->cells, _mm512_set1_epi32((int) n_keys));
    const __m512i pairs = _mm512_srli_epi32(c->cells, 1);
    const __m512i two = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), some, pairs, mask, 4);
    const __m512i odd = _mm512_slli_epi32(_mm512_and_si512(c->cells, _mm512_set1_epi32(1)), 4);
    return _mm256_mask_mov_epi16(hidden, some, _mm512_cvtepi32_epi16(_mm512_srlv_epi32(two, odd)));
}
INLINE __mmask16 shown(__m256i halves) { return _mm256_cmpneq_epi16_mask(halves, _mm256_set1_epi16((short) 0xfc00)); }
// The sum of a hash of each: other cells, or one twice, have another one but for one time in four billion.
INLINE __m512i counted(__m512i sum, __mmask16 some, __m512i cells) {
    const __m512i x = _mm512_mullo_epi32(_mm512_add_epi32(cells, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x9e3779b1));
    return _mm512_mask_add_epi32(sum, some, sum, _mm512_xor_si512(x, _mm512_srli_epi32(x, 15)));
}

// A list that has not all that the mask shows is not to be trusted.
static bool complete(const row * r, long n_keys) {
    __m512i sum = _mm512_setzero_si512();
    for (long c = 0; c < n_keys; c += 16) sum = counted(sum, shown(load256(r->mask + 2 * c)), from(c));
    return _mm512_reduce_add_epi32(sum) == _mm512_reduce_add_epi32(r->seen);
}

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

// Queries of one key head (head by head, each with all its tokens) that are computed together.
typedef struct {
    const attention * a;
    const char * keys, * values;
    long n, longest;  // queries, and the cells of the longest list
    row rows[QUERIES];
    _Alignas(64) float score[QUERIES * CELLS], floats[16 * WIDEST];
    uint16_t live[CELLS / 16];  // a bit for each query: other sequences' cells are not its business
    uint16_t same[CELLS / 16][QUERIES];  // by the first of them: queries that look at the same 16 cells
    __m512 top[QUERIES];
    bool sees[QUERIES];
} piece;

static void begin(piece * p, const attention * a, long head, long first, long n, bool listed) {
    p->a = a, p->n = n, p->longest = 0;
    p->keys = a->k + head * a->k_head, p->values = a->v + head * a->v_head;
    for (long i = 0; i < n; i++) {
        const long h = head * a->group + (first + i) / a->n_tokens, t = (first + i) % a->n_tokens;
        const int32_t * cells = listed && a->cells[t] ? a->cells[t] + a->shift : NULL;
        p->rows[i] = (row) {
            .q = (const float *) (a->q + t * a->q_token + h * a->q_head),
            .mask = a->mask ? a->mask + t * a->mask_token : NULL,
            .cells = cells, .n = cells ? a->n_cells[t] : a->n_keys,
            .out = (float *) (a->out + t * a->out_token + h * a->out_head),
            .most = -INFINITY, .sum = _mm512_setzero_ps(), .seen = _mm512_setzero_si512(),
        };
        memset(p->rows[i].out, 0, a->width * sizeof(float));
        if (p->rows[i].n > p->longest) p->longest = p->rows[i].n;
    }
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            if (p->rows[j].cells == p->rows[i].cells && p->rows[j].n > p->rows[i].reach)
                p->rows[i].reach = p->rows[j].n;
}

// Of the queries in `left`, those that look at the same 16 cells as the first of them.
static uint16_t alike(const piece * p, long at, uint16_t left) {
    const sixteen c = cells_at(&p->rows[__builtin_ctz(left)], at, p->a->n_keys);
    uint16_t same = 0;
    for (uint16_t rest = left; rest; rest &= rest - 1) {
        const row * r = &p->rows[__builtin_ctz(rest)];
        if (r->cells == c.list ||
            !_mm512_mask_cmpneq_epi32_mask(among(r->n, at), cells_at(r, at, p->a->n_keys).cells, c.cells))
            same |= rest & -rest;
    }
    return same;
}

// Makes floats of the rows that query `i` looks at.
static void fetch(piece * p, long at, long i, const char * from, size_t stride) {
    const __m512i cells = cells_at(&p->rows[i], at, p->a->n_keys).cells;
    const __mmask16 there = _mm512_cmplt_epu32_mask(cells, _mm512_set1_epi32((int) p->a->n_keys));
    as_floats(from, stride, _mm512_maskz_mov_epi32(there, cells), p->a->width, p->floats);
}

// What the masks let the queries see of 16 cells: into `score`. A bit for each query that sees any.
static uint16_t look(piece * p, long base, long at) {
    uint16_t live = 0;
    sixteen c = cells_at(&p->rows[0], base + at, p->a->n_keys);
    for (long i = 0; i < p->n; i++) {
        row * r = &p->rows[i];
        if (r->cells != c.list) c = cells_at(r, base + at, p->a->n_keys);
        const __m256i halves = mask_of(r->mask, &c, among(r->n, base + at), p->a->n_keys);
        const __mmask16 seen = shown(halves);
        if (!seen) continue;
        if (c.list) r->seen = counted(r->seen, seen, c.cells);
        live |= 1u << i;
        _mm512_store_ps(p->score + i * CELLS + at, _mm512_cvtph_ps(halves));
    }
    return live;
}

// The scores of 16 cells, the first of which is number `base` + `at` of each list.
static void score_cells(piece * p, long base, long at) {
    const attention * a = p->a;
    uint16_t live = p->live[at / 16] = look(p, base, at);
    for (uint16_t same; live; live &= ~same) {
        const long first = __builtin_ctz(live);
        same = p->same[at / 16][first] = alike(p, base + at, live);
        fetch(p, base + at, first, p->keys, a->k_cell);
        for (uint16_t rest = same; rest; rest &= rest - 1) {
            const long i = __builtin_ctz(rest);
            float * to = p->score + i * CELLS + at;
            const __m512 s = scores(p->rows[i].q, p->floats, a->width, a->scale, _mm512_load_ps(to));
            _mm512_store_ps(to, s);
            p->top[i] = _mm512_max_ps(p->top[i], s);
        }
    }
}

// Their values, each by its weight.
static void add_cells(piece * p, long base, long at) {
    const long width = p->a->width;
    for (uint16_t live = p->live[at / 16], same; live; live &= ~same) {
        const long first = __builtin_ctz(live);
        same = p->same[at / 16][first];
        fetch(p, base + at, first, p->values, p->a->v_cell);
        for (uint16_t rest = same; rest; rest &= rest - 1) {
            const long i = __builtin_ctz(rest);
            const float * weights = p->score + i * CELLS + at;
            float * out = p->rows[i].out;
            long c = p->sees[i] ? 0 : width;
            for (; c + 64 <= width; c += 64) add_rows(out + c, p->floats + c, width, weights, 4);
            for (; c < width; c += 16) add_rows(out + c, p->floats + c, width, weights, 1);
        }
    }
}

// Queries first .. first + n of one key head, CELLS cells at a time.
static void attend(const attention * a, long head, long first, long n, bool listed) {
    piece p;
    begin(&p, a, head, first, n, listed);
    for (long base = 0; base < p.longest; base += CELLS) {
        const long cells = p.longest - base < CELLS ? p.longest - base : CELLS;
        bool any = false;
        for (long i = 0; i < n; i++) p.top[i] = _mm512_set1_ps(-INFINITY);
        for (long at = 0; at < cells; at += 16) score_cells(&p, base, at);
        for (long i = 0; i < n; i++)
            any |= p.sees[i] = weigh(&p.rows[i], p.score + i * CELLS, cells, p.top[i], a->width, p.live, i);
        for (long at = 0; any && at < cells; at += 16) add_cells(&p, base, at);
    }
    for (long i = 0; i < n; i++) {
        const row * r = &p.rows[i];
        const float sum = _mm512_reduce_add_ps(r->sum);
        const __m512 share = _mm512_set1_ps(sum > 0 ? 1 / sum : 0);
        for (long c = 0; c < a->width; c += 16)
            _mm512_storeu_ps(r->out + c, _mm512_mul_ps(_mm512_loadu_ps(r->out + c), share));
        if (r->cells && !complete(r, a->n_keys)) attend(a, head, first + i, 1, false);
    }
}

// Thread `ith` of `nth`: its share of all key heads' queries, cut so that all threads have as many pieces.
static void attend_all(const attention * a, long n_heads, int ith, int nth) {
    const long queries = a->group * a->n_tokens;
    long parts = (queries + QUERIES - 1) / QUERIES;
    while (parts < queries && n_heads * parts % nth) parts++;
    for (long piece = ith; piece < n_heads * parts; piece += nth) {
        const long part = piece % parts, first = queries * part / parts, end = queries * (part + 1) / parts;
        attend(a, piece / parts, first, end - first, a->cells != NULL);
    }
}
