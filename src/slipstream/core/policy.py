"""Policies that do not price the step: a fixed draft length, and none. The priced policy takes the same seam."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.ports import Room, Want
from slipstream.core.types import EMPTY_DRAFT, Draft, StepRecord
from slipstream.errors import InputError


class Fixed:
    """Always ask for a draft `k` deep, with at most `nodes` nodes (default `k`: a chain unless `width` > 1)."""

    def __init__(self, k: int, width: int = 1, nodes: int | None = None) -> None:
        if k < 0:
            raise InputError(f"k is {k}", "the draft length is 0 (plain decoding) or more")
        if width < 1:
            raise InputError(f"width is {width}", "1 drafts a chain, 2 or more a tree")
        if nodes is not None and nodes < k:
            raise InputError(f"{nodes} nodes do not reach a depth of {k}", "give at least k nodes")
        self.most = Want(nodes if nodes is not None else k * width, k, width)

    def plan(self, rooms: Sequence[Room]) -> list[Want]:
        return [self.most] * len(rooms)

    def choose(self, rooms: Sequence[Room], drafts: Sequence[Draft]) -> list[Draft]:
        return list(drafts)

    def learn(self, records: Sequence[StepRecord]) -> None:
        return None


class Off(Fixed):
    """Plain decoding."""

    def __init__(self) -> None:
        super().__init__(0)

    def choose(self, rooms: Sequence[Room], drafts: Sequence[Draft]) -> list[Draft]:
        return [EMPTY_DRAFT] * len(rooms)
