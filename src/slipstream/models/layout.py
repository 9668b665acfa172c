"""How a context is laid out for slots and token trees; opening a model and counting its memory must agree on it."""

from __future__ import annotations

ROWS_PER_SLOT = 64  # logits rows that one slot may ask for: its last token and 63 drafted ones
_GRAIN = 256  # llama.cpp rounds the number of cells up to this


def cells(n_ctx: int, n_slots: int) -> int:
    """Cache cells for all slots, with room for the rejected branches of trees."""
    return -(-(n_ctx * n_slots + max(_GRAIN, ROWS_PER_SLOT * n_slots)) // _GRAIN) * _GRAIN


def leaves(n_slots: int) -> int:
    """Branches that each slot's tree may have: llama.cpp knows 256 sequences."""
    return max(1, min(16, 256 // n_slots))


def rows(n_slots: int, n_batch: int) -> int:
    """Most logits rows of one forward. llama.cpp aborts when this is below the number of sequences."""
    return max(min(n_batch, ROWS_PER_SLOT * n_slots), n_slots * leaves(n_slots))
