// Matrix products of quantised weights with 1 to 512 tokens, for x86 CPUs with AVX-512 VNNI.
//
// llama.cpp multiplies most quantised types row by row (the cost of n tokens is n times that of one). Here eight rows
// of weights are unpacked once, in registers, and used for up to eight tokens. The library is loaded before
// libggml-cpu, whose calls then land here (symbol interposition); what is not handled goes on to llama.cpp's own code.
// The arithmetic is in kernels_tiles.h.

#define _GNU_SOURCE
#include "kernels_tiles.h"

#include "kernels_attention.h"
#include "kernels_order.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define MUL_MAT 29  // ggml_op
#define TOKENS_AT_ONCE 64  // their activations stay in the second-level cache

// ---- Matrices -----------------------------------------------------------------------------------------------------

typedef struct {
    int type;         // ggml_type
    bool packed;      // 8 rows interleaved by llama.cpp (repack.cpp)
    int block, group; // of the activations
    float (*quantize)(const float *, int8_t *);
    bool half_scale;
    void (*aux)(int8_t *, float, uint64_t *);
    void (*kernel)(int, ARGS);
    int bytes, values; // of a weight block
} format;

static const format FORMATS[] = {
    { 12, true, 256, 64, quantize_256, false, aux_sums, q4_Kx8, 144, 256 },
    { 14, true, 256, 256, quantize_256, false, aux_unsigned, q6_Kx8, 210, 256 },
    { 2, true, 32, 32, quantize_32, true, aux_start_40, q4_0x8, 18, 32 },
    { 3, false, 32, 32, quantize_32, true, aux_scaled_sum, q4_1, 20, 32 },
    { 6, false, 32, 32, quantize_32, true, aux_start_50, q5_0, 22, 32 },
    { 8, false, 32, 32, quantize_32, true, aux_start_80, q8_0, 34, 32 },
};

static const format * find(int type, bool packed) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (FORMATS[i].type == type && FORMATS[i].packed == packed) return &FORMATS[i];
    return NULL;
}

// Quantises blocks from..to of all rows, counted through; x has `stride` bytes a row.
static void quantize_blocks(const format * f, const acts * a, const void * x, size_t stride, long from, long to) {
    const long per_row = a->k / f->block, groups = f->block / f->group;
    for (long b = from; b < to; b++) {
        const float * row = (const float *) ((const char *) x + b / per_row * stride) + b % per_row * f->block;
        float d = f->quantize(row, a->qs + b * f->block);
        f->aux(a->qs + b * f->block, d, a->aux + b * groups);
        a->d[b] = f->half_scale ? half_rounded(d) : d;
    }
}

// Rows 8 * from .. 8 * to of the weights times all tokens. Out: out_stride floats a token.
static void multiply_groups(const format * f, const acts * a, const uint8_t * w, long from, long to, float * out,
                            size_t out_stride) {
    const size_t stride = (size_t) a->k / f->values * f->bytes;
    for (long start = 0; start < a->n; start += TOKENS_AT_ONCE) {
        const long n = a->n - start < TOKENS_AT_ONCE ? a->n - start : TOKENS_AT_ONCE, passes = (n + 7) / 8;
        for (long g = from; g < to; g++)
            for (long i = 0; i < passes; i++) {
                const long c = start + n * i / passes, end = start + n * (i + 1) / passes;
                f->kernel((int) (end - c), w + 8 * g * stride, stride, a, c, out + c * out_stride + 8 * g, out_stride);
            }
    }
}

// ---- The places where llama.cpp's calls arrive --------------------------------------------------------------------

// As in ggml.h and ggml-cpu-impl.h of the versions that kernels.py accepts.
struct tensor {
    int type;
    void * buffer;
    int64_t ne[4];
    size_t nb[4];
    int op, op_params[16], flags;
    struct tensor * src[10], * view_src;
    size_t view_offs;
    void * data;
    char name[64];
};
struct params {
    int ith, nth;
    size_t wsize;
    void * wdata, * threadpool;
    bool use_ref;
};

EXPORT int slipstream_kernels_on = 1;   // 0: everything goes to llama.cpp's own code
EXPORT long slipstream_kernels_used = 0;  // products computed here

#define SYMBOL_40 "_ZN4ggml3cpu6repack13tensor_traitsI10block_q4_0Ll8ELl8EL9ggml_type8EE"
#define SYMBOL_4K "_ZN4ggml3cpu6repack13tensor_traitsI10block_q4_KLl8ELl8EL9ggml_type15EE"
#define SYMBOL_6K "_ZN4ggml3cpu6repack13tensor_traitsI10block_q6_KLl8ELl8EL9ggml_type15EE"
#define FORWARD "15compute_forwardEP19ggml_compute_paramsP11ggml_tensor"
#define WORK "9work_sizeEiPK11ggml_tensorRm"

// A function of libggml-cpu itself, found once it is loaded.
static void * original(const char * name) {
    void * lib = dlopen("libggml-cpu.so.0", RTLD_NOLOAD | RTLD_LAZY);
    void * found = lib ? dlsym(lib, name) : dlsym(RTLD_NEXT, name);
    if (!found) abort();  // cannot be: the caller is that library
    if (lib) dlclose(lib);
    return found;
}
#define ORIGINAL(type, name)                                                                   \
    static type found;                                                                         \
    type known = __atomic_load_n(&found, __ATOMIC_RELAXED);                                    \
    if (!known) __atomic_store_n(&found, known = (type) original(name), __ATOMIC_RELAXED)

typedef void (*barrier_fn)(void *);
typedef void (*chunk_set_fn)(void *, int);
typedef int (*chunk_add_fn)(void *, int);
static void barrier(void * pool) { ORIGINAL(barrier_fn, "ggml_barrier"); known(pool); }
static void chunk_set(void * pool, int v) { ORIGINAL(chunk_set_fn, "ggml_threadpool_chunk_set"); known(pool, v); }
static int chunk_add(void * pool, int v) { ORIGINAL(chunk_add_fn, "ggml_threadpool_chunk_add"); return known(pool, v); }

// The format of a product w (k x rows) times x (k x n) that is computed here, else NULL.
static const format * accepts(const struct tensor * dst, bool packed) {
    const struct tensor * w = dst->src[0], * x = dst->src[1];
    const format * f = slipstream_kernels_on && w && x && !dst->src[2] ? find(w->type, packed) : NULL;
    bool flat = f && w->ne[2] * w->ne[3] * x->ne[2] * x->ne[3] == 1 && x->type == 0 && dst->type == 0;
    bool dense = flat && w->nb[0] == (size_t) f->bytes && w->nb[1] == w->ne[0] / f->values * (size_t) f->bytes &&
                 x->nb[0] == 4 && dst->nb[0] == 4 && w->ne[0] == x->ne[0];
    return dense && w->ne[1] % 8 == 0 && w->ne[0] % f->block == 0 && x->ne[1] > 0 ? f : NULL;
}
static acts shape(const format * f, const struct tensor * x) {
    return (acts) { .n = x->ne[1], .k = x->ne[0], .block = f->block, .group = f->group };
}

static bool multiply(const struct params * at, struct tensor * dst, bool packed) {
    const format * f = at->use_ref ? NULL : accepts(dst, packed);
    if (!f) return false;
    const struct tensor * w = dst->src[0], * x = dst->src[1];
    acts a = shape(f, x);
    if (acts_layout(&a, at->wdata) > at->wsize) return false;
    const long blocks = a.n * (a.k / f->block), groups = w->ne[1] / 8;
    quantize_blocks(f, &a, x->data, x->nb[1], blocks * at->ith / at->nth, blocks * (at->ith + 1) / at->nth);
    if (at->ith == 0) {
        __atomic_fetch_add(&slipstream_kernels_used, 1, __ATOMIC_RELAXED);
        chunk_set(at->threadpool, at->nth);
    }
    barrier(at->threadpool);
    // Long runs of rows, which fetch_ahead serves best; short ones when the weights are passed over more than once.
    const long fair = (groups + 8 * at->nth - 1) / (8 * at->nth), cached = 1 + 131072 / (long) (8 * w->nb[1]);
    const long step = a.n <= TOKENS_AT_ONCE || fair < cached ? fair : cached;
    for (long i = at->ith; i * step < groups; i = chunk_add(at->threadpool, 1)) {
        const long end = (i + 1) * step < groups ? (i + 1) * step : groups;
        multiply_groups(f, &a, w->data, i * step, end, dst->data, dst->nb[1] / 4);
    }
    return true;
}

static size_t memory_for(const struct tensor * dst, bool packed) {
    const format * f = accepts(dst, packed);
    if (!f) return 0;
    acts a = shape(f, dst->src[1]);
    return acts_layout(&a, NULL);
}

typedef bool (*tiled_fn)(const struct params *, struct tensor *);
typedef size_t (*tiled_size_fn)(int, struct tensor *);
EXPORT bool ggml_compute_forward_mul_mat_tiled(const struct params * at, struct tensor * dst) {
    if (multiply(at, dst, false)) return true;
    ORIGINAL(tiled_fn, "ggml_compute_forward_mul_mat_tiled");
    return known(at, dst);
}
EXPORT size_t ggml_tiled_wdata_size(int n_tasks, struct tensor * dst) {
    ORIGINAL(tiled_size_fn, "ggml_tiled_wdata_size");
    return known(n_tasks, dst) + memory_for(dst, false);
}

typedef bool (*forward_fn)(void *, struct params *, struct tensor *);
typedef bool (*work_fn)(void *, int, const struct tensor *, size_t *);
#define PACKED(name, symbol)                                                                                     \
    EXPORT bool forward_##name(void *, struct params *, struct tensor *) __asm__(symbol FORWARD);                \
    EXPORT bool forward_##name(void * self, struct params * at, struct tensor * dst) {                           \
        if (multiply(at, dst, true)) return true;                                                                \
        ORIGINAL(forward_fn, symbol FORWARD);                                                                    \
        return known(self, at, dst);                                                                             \
    }                                                                                                            \
    EXPORT bool work_##name(void *, int, const struct tensor *, size_t *) __asm__(symbol WORK);                  \
    EXPORT bool work_##name(void * self, int n_threads, const struct tensor * dst, size_t * size) {              \
        ORIGINAL(work_fn, symbol WORK);                                                                          \
        bool ok = known(self, n_threads, dst, size);                                                             \
        *size += memory_for(dst, true);                                                                          \
        return ok;                                                                                               \
    }
PACKED(q4_0, SYMBOL_40)
PACKED(q4_K, SYMBOL_4K)
PACKED(q6_K, SYMBOL_6K)

// llama.cpp can interleave Q6_K too, but does so for ARM only. While it decides about such a matrix, it is told what it
// wants to hear; rows that lie in one stream are read half as fast again as eight short ones.
static _Thread_local bool interleaving;
EXPORT int ggml_cpu_has_neon(void) { return interleaving; }
EXPORT int ggml_cpu_has_matmul_int8(void) { return interleaving; }
static bool fits(const struct tensor * w) {
    return slipstream_kernels_on && w && w->type == 14 && w->ne[1] % 8 == 0 && w->ne[2] * w->ne[3] == 1;
}

typedef int (*init_fn)(void *, struct tensor *);
EXPORT int ggml_backend_buffer_init_tensor(void * buffer, struct tensor * w) {
    ORIGINAL(init_fn, "ggml_backend_buffer_init_tensor");
    interleaving = fits(w);
    int status = known(buffer, w);
    interleaving = false;
    return status;
}
typedef bool (*supports_fn)(void *, void *, const struct tensor *);
#define SUPPORTS "_ZN4ggml3cpu6repack17extra_buffer_type11supports_opEP19ggml_backend_devicePK11ggml_tensor"
EXPORT bool supports(void *, void *, const struct tensor *) __asm__(SUPPORTS);
EXPORT bool supports(void * self, void * device, const struct tensor * product) {
    ORIGINAL(supports_fn, SUPPORTS);
    interleaving = product->op == MUL_MAT && fits(product->src[0]);
    bool ok = known(self, device, product);
    interleaving = false;
    return ok;
}

// Weights in huge pages, where the system allows it: fewer addresses to translate. What it gains is within the noise here.
typedef void * (*alloc_fn)(size_t);
EXPORT void * ggml_aligned_malloc(size_t size) {
    ORIGINAL(alloc_fn, "ggml_aligned_malloc");
    char * memory = known(size);
    const uintptr_t huge = 2 << 20, first = ((uintptr_t) memory + huge - 1) & -huge;
    if (slipstream_kernels_on && memory && first + huge <= (uintptr_t) memory + size)
        madvise((void *) first, ((uintptr_t) memory + size - first) & -huge, MADV_HUGEPAGE);
    return memory;
}

// The order of cells: of one forward at a time in a process (order.py has a lock).
EXPORT order * slipstream_order = NULL;
static _Thread_local restored * restoring;
EXPORT void slipstream_restoring(restored * r) { restoring = r; }

typedef void (*rows_fn)(const struct params *, struct tensor *);
EXPORT void ggml_compute_forward_set_rows(const struct params * at, struct tensor * dst) {
    ORIGINAL(rows_fn, "ggml_compute_forward_set_rows");
    known(at, dst);
    const struct tensor * index = dst->src[1];
    order * o = at->ith == 0 ? slipstream_order : NULL;
    if (o && index->ne[0] == o->n_tokens && !strcmp(index->name, "attn_inp_k_idxs")) note_cells(o, index->data, dst->data);
}

typedef void (*tensor_set_fn)(struct tensor *, const void *, size_t, size_t);
EXPORT void ggml_backend_tensor_set(struct tensor * to, const void * data, size_t offset, size_t size) {
    ORIGINAL(tensor_set_fn, "ggml_backend_tensor_set");
    known(to, data, offset, size);
    if (restoring && !strncmp(to->name, "cache_k", 7))
        note_rows(restoring, to, to->data, offset / to->nb[1], size / to->nb[1]);
}

// llama.cpp's attention adds up in another order for one query (the past is cut in as many parts as there are threads,
// from 512 cells on) than for several. What ours (kernels_attention.h) can do, it does for both. For the rest: with heads
// enough for all threads nothing is gained by that order, so that the way of several is taken for one too.
static bool attention_of(const struct tensor * dst, int n_threads, attention * a) {
    const struct tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3];
    const float * op = (const float *) dst->op_params;  // scale, largest bias (ALiBi), soft cap
    if (dst->src[4] || op[1] != 0 || op[2] != 0 || q->type != 0 || k->type != 1 || v->type != 1) return false;
    if (q->ne[0] % 16 || q->ne[0] > WIDEST || v->ne[0] != q->ne[0] || k->ne[1] % 16) return false;
    if (q->ne[2] < n_threads) return false;  // heads are what the work is cut by
    if (q->ne[3] != 1 || k->ne[3] != 1 || k->ne[2] != v->ne[2] || q->ne[2] % k->ne[2]) return false;
    if (q->nb[0] != 4 || k->nb[0] != 2 || v->nb[0] != 2 || dst->nb[0] != 4) return false;
    if (mask && (mask->type != 1 || mask->ne[2] != 1 || mask->ne[3] != 1 || mask->nb[0] != 2)) return false;
    *a = (attention) {
        q->ne[0], k->ne[1], q->ne[1], q->ne[2] / k->ne[2], op[0], q->data, k->data, v->data, mask ? mask->data : NULL,
        q->nb[1], q->nb[2], k->nb[1], k->nb[2], v->nb[1], v->nb[2], mask ? mask->nb[1] : 0,
        dst->data, dst->nb[1], dst->nb[2], NULL, NULL, 0,
    };
    const order * o = slipstream_order;
    if (o && mask && o->n_tokens == q->ne[1] && o->keys == k->data)
        a->cells = (const int32_t * const *) o->cells, a->n_cells = o->n_cells, a->shift = o->current * o->second;
    return true;
}

typedef void (*attention_fn)(const struct params *, struct tensor *);
EXPORT void ggml_compute_forward_flash_attn_ext(const struct params * at, struct tensor * dst) {
    const int64_t * ne = dst->src[0]->ne;  // of the queries: size of a head, tokens, heads
    attention a;
    if (slipstream_kernels_on && !at->use_ref && attention_of(dst, at->nth, &a)) {
        attend_all(&a, dst->src[1]->ne[2], at->ith, at->nth);
        return;
    }
    struct params same = *at;
    same.use_ref |= slipstream_kernels_on && ne[1] <= 64 && ne[1] * ne[2] >= 2 * at->nth;
    ORIGINAL(attention_fn, "ggml_compute_forward_flash_attn_ext");
    known(&same, dst);
}

// For tests, without llama.cpp: out[n][rows] = x[n][k] times weights; `x` in one piece. False if not supported.
EXPORT bool slipstream_multiply(int type, bool packed, long rows, long k, long n, const void * w, const float * x,
                                float * out) {
    const format * f = find(type, packed);
    if (!f || rows % 8 || k % f->block) return false;
    acts a = { .n = n, .k = k, .block = f->block, .group = f->group };
    void * memory = malloc(acts_layout(&a, NULL));
    acts_layout(&a, memory);
    quantize_blocks(f, &a, x, 4 * k, 0, n * (k / f->block));
    multiply_groups(f, &a, w, 0, rows / 8, out, rows);
    free(memory);
    return true;
}
// The same for attention, in one thread.
EXPORT void slipstream_attend(const attention * a, long key_heads) { attend_all(a, key_heads, 0, 1); }
