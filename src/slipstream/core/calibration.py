"""How likely a drafted token is to be accepted, learnt from what became of earlier ones.

Two layers. A table: for each drafter and each label of evidence, how often such guesses were right, starting at what
the drafter claims and fading over some hundred guesses. And for each drafter in each slot a mood: one number that is
added to the log-odds, follows the last dozen guesses (a step of logistic regression each) and falls back to zero.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

_PRIOR = 4.0  # guesses that a claim is worth before there are real ones
_MEMORY = 200.0  # guesses after which older ones count half, about
_STEP, _FADE, _MOST = 0.2, 0.97, 3.0  # of the mood


@dataclass
class _Count:
    right: float = 0.0
    all: float = 0.0


class Calibration:
    """Probabilities by (drafter, evidence); `slot` tells the moods of sequences apart."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, Hashable], _Count] = {}
        self._mood: dict[tuple[int, str], float] = {}

    def begin(self, slot: int) -> None:
        """Another text starts in the slot: its mood is not the last one's."""
        for key in [k for k in self._mood if k[0] == slot]:
            del self._mood[key]

    def probability(self, slot: int, origin: str, evidence: Hashable, claim: float) -> float:
        """Of a node, given that its parent is accepted."""
        return self._moved(self._base(origin, evidence, claim), self._mood.get((slot, origin), 0.0))

    def learn(self, slot: int, origin: str, evidence: Hashable, claim: float, right: bool) -> None:
        base = self._base(origin, evidence, claim)
        mood = self._mood.get((slot, origin), 0.0)
        mood = _FADE * mood + _STEP * (right - self._moved(base, mood))
        self._mood[slot, origin] = min(max(mood, -_MOST), _MOST)
        count = self._table.setdefault((origin, evidence), _Count())
        keep = 1 - 1 / _MEMORY
        count.right, count.all = keep * count.right + right, keep * count.all + 1

    def _base(self, origin: str, evidence: Hashable, claim: float) -> float:
        count = self._table.get((origin, evidence))
        right, n = (count.right, count.all) if count else (0.0, 0.0)
        return (right + _PRIOR * claim) / (n + _PRIOR)

    @staticmethod
    def _moved(p: float, mood: float) -> float:
        if not mood:
            return p
        p = min(max(p, 1e-4), 1 - 1e-4)
        return 1 / (1 + (1 - p) / p * math.exp(-mood))
