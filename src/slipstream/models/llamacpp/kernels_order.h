// In which cells a token's past lies, in the order of positions. llama.cpp puts a token where there is room, so that
// after a rejected branch, or beside other sequences, cells are not in that order; attention that adds up by cell then
// rounds otherwise than it would alone. models/llamacpp/order.py fills this in before a forward.

#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t n_tokens, n_places;
    int32_t * const * cells; // of each token: its list, by position; NULL: as its cells lie
    const int32_t * n_cells;       // how many of the list a token sees, itself the last
    int32_t * const * places;      // where in the lists this batch's own tokens belong,
    const int32_t * of_token;      // and which of them; their cells are only known once they are written
    int32_t * written;             // out: the cell of each token
    // A model with windowed layers has a second cache for them: its lists lie so many numbers behind the first's.
    ptrdiff_t second, second_written;
    const void * index[2];         // out: how llama.cpp's two lists of cells are told apart, and
    const void * first_keys[2];    // the keys of the first layer of each cache
    const void * keys;             // of the layer that is computed now; a layer that shares another's has no list
    int32_t current;               // and which cache they lie in
    int32_t windowed;              // whether there are such layers
} order;

// llama.cpp reuses cells that a windowed layer does not see any more: what they held is no longer there.
static void forget(const order * o, const int32_t * written, ptrdiff_t shift) {
    for (int32_t t = 0; t < o->n_tokens; t++) {
        if (!o->cells[t] || (t && o->cells[t] == o->cells[t - 1])) continue;
        int32_t * list = o->cells[t] + shift;
        for (int32_t i = 0; i < o->n_tokens; i++)
            for (int32_t p = 0; p < o->n_cells[t] - 1; p++) list[p] = list[p] == written[i] ? -1 : list[p];
    }
}

// The cells of this batch, as llama.cpp is about to write them.
static void note_cells(order * o, const int64_t * cells, const void * keys) {
    const int k = o->current = o->index[0] && o->index[0] != cells;
    o->keys = keys;
    if (o->index[k]) return;  // a layer like an earlier one
    o->index[k] = cells, o->first_keys[k] = keys;
    int32_t * written = o->written + k * o->second_written;
    for (int32_t t = 0; t < o->n_tokens; t++) written[t] = (int32_t) cells[t];
    if (o->windowed) forget(o, written, k * o->second);
    for (int32_t i = 0; i < o->n_places; i++) o->places[i][k * o->second] = written[o->of_token[i]];
}

// The cells that a saved state was put back into: rows of the first layer's keys, and of the last layer's, which lie in
// the second cache where there is one.
typedef struct {
    int32_t room, n[2];
    int32_t * cells[2];
    const void * tensor[2], * keys; // of the first: its data
} restored;

static void note_rows(restored * r, const void * tensor, const void * data, size_t first, size_t n) {
    if (!r->tensor[0]) r->tensor[0] = tensor, r->keys = data;
    if (r->tensor[1] != tensor) r->tensor[1] = tensor, r->n[1] = 0;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; r->tensor[k] == tensor && i < n && r->n[k] < r->room; i++)
            r->cells[k][r->n[k]++] = (int32_t) (first + i);
}
