"""Policies that do not price the step: a fixed draft length, and none. The priced policy is in priced.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.core.merge import depth_first, merge
from slipstream.core.ports import NOTHING, Choice, Outcome, Room, Source, Want
from slipstream.core.types import EMPTY_DRAFT, Draft
from slipstream.errors import InputError


class Fixed:
    """Always ask for a draft `k` deep, with at most `nodes` nodes (default `k`: a chain unless `width` > 1).

    Several drafters are merged by their own claims.
    """

    def __init__(self, k: int, width: int = 1, nodes: int | None = None) -> None:
        if k < 0:
            raise InputError(f"k is {k}", "the draft length is 0 (plain decoding) or more")
        if width < 1:
            raise InputError(f"width is {width}", "1 drafts a chain, 2 or more a tree")
        if nodes is not None and nodes < k:
            raise InputError(f"{nodes} nodes do not reach a depth of {k}", "give at least k nodes")
        self.most = Want(nodes if nodes is not None else k * width, k, width)

    def begin(self, slot: int) -> None:
        return None

    def want(self, room: Room, source: Source, offers: Sequence[Draft]) -> Want:
        return self.most if self.most.nodes else NOTHING

    def hint(self, room: Room, name: str, read: int, guess: Callable[[], Sequence[Draft]]) -> Sequence[int]:
        return ()

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        return [Choice(self._one(room, own)) for room, own in zip(rooms, offers, strict=True)]

    def _one(self, room: Room, offers: Sequence[Draft]) -> Draft:
        some = [o for o in offers if o.tokens]
        if not some:
            return EMPTY_DRAFT
        draft = some[0] if len(some) == 1 else merge(some)
        if self.most.width == 1 or room.leaves == 1:
            draft = draft.spine()
        draft = draft.limit(min(self.most.nodes, room.most), min(self.most.depth, room.left), room.leaves, room.n_vocab)
        return draft if len(some) == 1 else depth_first(draft)

    def learn(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        return None

    def report(self) -> dict[str, str]:
        return {}


class Off(Fixed):
    """Plain decoding."""

    def __init__(self) -> None:
        super().__init__(0)
