"""Drafts from a text that the caller expects, such as the file that is being edited.

The output is followed along the expected text. Where it departs, the drafter looks for its last tokens further on in
the expected text; at the first token that differs it bets that one token stands for another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from operator import itemgetter

from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict
from slipstream.drafters.growth import Option, grow

_SURE = 3  # tokens matched in a row after which a place is believed
_PLACES = 4  # places followed at once while none is
_NEAR = 8  # occurrences looked at on each side
_LONGEST = 8  # a longer match does not count for more
_BINS = (0, 1, 2, 3, 3, 4, 4, 4, 4, 5)  # of tokens matched in a row
# Chance of the next expected token by that bin (measured): before any departure, after one.
_FIRST = (0.50, 0.70, 0.80, 0.90, 0.95, 0.98)
_AGAIN = (0.12, 0.50, 0.36, 0.65, 0.87, 0.99)

_Place = tuple[int, int]  # index of the next expected token, tokens matched in a row before it


class PredictedDrafter:
    """Say what is expected with `expect` before a sequence begins; without that, nothing is proposed.

    Evidence is (bin of the tokens matched in a row, whether the output had departed before)."""

    name = "predicted"
    costly = False

    def __init__(self) -> None:
        self._expected: dict[int, list[int]] = {}
        self._slots: dict[int, _Follower] = {}

    def expect(self, slot: int, tokens: Sequence[int]) -> None:
        """The next sequence that begins in `slot` is expected to be like `tokens`; holds for that one only."""
        self._expected[slot] = list(tokens)

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        self._slots[slot] = _Follower(self._expected.pop(slot, []), len(tokens))

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        follower = self._slots[slot]
        if not follower.expected:
            return EMPTY_DRAFT
        follower.read(tokens)
        return grow(None, follower.options, want, self.name)

    def peek(self, slot: int, tokens: Sequence[int], path: Sequence[int], want: Want) -> Draft:
        if not self._slots[slot].expected:
            return EMPTY_DRAFT
        ahead = copy(self._slots[slot])  # its places are replaced, never changed
        ahead.read([*tokens, *path])
        return grow(None, ahead.options, want, self.name)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        self._slots.pop(slot, None)


class _Follower:
    """Where in `expected` the output stands: one place, or several until one of them has proved right."""

    def __init__(self, expected: list[int], n_prompt: int) -> None:
        self.expected = expected
        self.n_prompt = self.n_read = n_prompt
        self.places: list[_Place] = [(0, 0)]
        self.departed = False
        self.left = 0  # where the output was last known to stand
        self.lost = 0  # output tokens since
        self.after: dict[tuple[int, int], list[int]] = {}  # two tokens -> indices of what follows them
        for i in range(2, len(expected)):
            self.after.setdefault((expected[i - 2], expected[i - 1]), []).append(i)

    def read(self, tokens: Sequence[int]) -> None:
        for n in range(self.n_read + 1, len(tokens) + 1):
            self._follow(tokens[max(self.n_prompt, n - _LONGEST) : n])
        self.n_read = len(tokens)

    def _follow(self, recent: Sequence[int]) -> None:
        """Move on by the last of these output tokens."""
        end, token = len(self.expected), recent[-1]
        held = [(i + 1, run + 1) for i, run in self.places if i < end and self.expected[i] == token]
        best = max(held, key=itemgetter(1), default=(0, 0))
        if best[1] >= _SURE or (held and not self.departed):
            self.places, self.left, self.lost = [best], best[0], 0
            return
        self.departed, self.lost = True, self.lost + 1
        held += self._found(recent)
        held.sort(key=itemgetter(1), reverse=True)
        if self.lost == 1:
            held.append((self.left + 1, 0))  # one token stands for another
        self.places = list(dict(held[::-1]).items())[::-1][:_PLACES]

    def _found(self, recent: Sequence[int]) -> list[_Place]:
        """The best other place where the last two output tokens stand: a long match, then not far ahead."""
        indices = self.after.get((recent[-2], recent[-1]), []) if len(recent) > 1 else []
        at = bisect_left(indices, self.left)
        best: tuple[int, int, int] | None = None
        for i in indices[max(at - _NEAR, 0) : at + _NEAR]:
            run = 2
            while run < min(len(recent), i) and self.expected[i - run - 1] == recent[-run - 1]:
                run += 1
            distance = i - self.left if i >= self.left else 2 * (self.left - i)
            best = max(best or (0, 0, 0), (run, -distance, i))
        return [(best[2], best[0])] if best else []

    def options(self, place: _Place | None, width: int) -> list[Option[_Place | None]]:
        found: dict[int, Option[_Place | None]] = {}
        for i, run in self.places if place is None else (place,):
            if i < len(self.expected) and self.expected[i] not in found:
                b = _BINS[run] if run < len(_BINS) else _BINS[-1]
                chance = (_AGAIN if self.departed else _FIRST)[b]
                found[self.expected[i]] = (chance, self.expected[i], (b, self.departed), (i + 1, run + 1))
        return list(found.values())[:width]
