"""Cutting a slot as far as its model can."""

from __future__ import annotations

from slipstream.core.ports import Model
from slipstream.errors import RollbackError


def cut(model: Model, slot: int, n_past: int) -> int:
    """Cut a slot's past to its first `n_past` tokens; how many are left: none where the model cannot cut there."""
    try:
        model.truncate(slot, n_past)
    except RollbackError:
        n_past = 0
        model.truncate(slot, n_past)
    return n_past
