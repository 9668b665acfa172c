"""Counts and times of many steps, with one meaning each.

acceptance rate: accepted / verified drafted tokens. Mean acceptance length: tokens per target forward, the target's own
included, prompt reading left out. `discarded` drafts were proposed and never verified; they are in no rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from slipstream.core.types import StepRecord


@dataclass
class Stats:
    """Sums over steps. Seconds are of whole steps: of several sequences at once each counts the shared time.

    A draft model reads the prompt in its first step: that time is in `draft_s`, and so in tokens per second.
    """

    steps: int = 0  # forwards that chose tokens, without prompt reading
    verify_steps: int = 0  # of these, with a draft
    proposed: int = 0
    verified: int = 0
    accepted: int = 0
    emitted: int = 0  # tokens of `steps`
    emitted_verifying: int = 0  # tokens of `verify_steps`
    padded: int = 0  # tokens that only filled forwards up to a cheaper size; in no rate
    first_tokens: int = 0  # tokens that came with the end of a prompt
    prefilled: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0
    saved_s: float | None = None  # against plain steps for the same tokens, by the prices; None: no step had any
    accepted_per_position: list[int] = field(default_factory=list)
    verified_per_position: list[int] = field(default_factory=list)
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[StepRecord]) -> Stats:
        stats = cls()
        for record in records:
            stats.add(record)
        return stats

    def add(self, r: StepRecord) -> None:
        if r.prefilled:
            self.prefilled += r.prefilled
            self.prefill_s += r.draft_s + r.forward_s + r.verify_s
            self.first_tokens += r.emitted
            return
        self.steps += 1
        self.verify_steps += r.verified > 0
        self.proposed += r.proposed
        self.verified += r.verified
        self.accepted += r.accepted
        self.padded += r.padded
        self.emitted += r.emitted
        self.emitted_verifying += r.emitted if r.verified else 0
        self.draft_s += r.draft_s
        self.forward_s += r.forward_s
        self.verify_s += r.verify_s
        if r.plain_s is not None and r.price_s is not None:
            self.saved_s = (self.saved_s or 0.0) + r.emitted * r.plain_s - r.price_s - r.draft_s
        _raise_to(self.accepted_per_position, r.accepted)
        _raise_to(self.verified_per_position, r.depth)
        for name, n in r.verified_origins.items():
            self._drafter(name)["verified"] += n
        for name, n in Counter(r.accepted_origins).items():
            self._drafter(name)["accepted"] += n

    def _drafter(self, name: str) -> dict[str, int]:
        return self.by_drafter.setdefault(name, {"verified": 0, "accepted": 0})

    def plus(self, other: Stats) -> Stats:
        """The sums of both."""
        total = Stats()
        for f in fields(Stats):
            a, b = getattr(self, f.name), getattr(other, f.name)
            if isinstance(a, list):
                value: Any = [x + y for x, y in zip_longest(a, b, fillvalue=0)]
            elif isinstance(a, dict):
                names = [*a, *(name for name in b if name not in a)]
                counts = [(a.get(name, {}), b.get(name, {})) for name in names]
                keys = ("verified", "accepted")
                value = {
                    n: {k: x.get(k, 0) + y.get(k, 0) for k in keys} for n, (x, y) in zip(names, counts, strict=True)
                }
            else:
                value = b if a is None else a if b is None else a + b
            setattr(total, f.name, value)
        return total

    @property
    def discarded(self) -> int:
        return self.proposed - self.verified

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.verified if self.verified else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return self.emitted / self.steps if self.steps else None

    @property
    def decode_s(self) -> float:
        return self.draft_s + self.forward_s + self.verify_s

    @property
    def tokens_per_second(self) -> float | None:
        """Of decoding alone: the first token belongs to the prompt's time."""
        return self.emitted / self.decode_s if self.decode_s > 0 and self.emitted else None

    def as_dict(self) -> dict[str, Any]:
        derived = ("discarded", "acceptance_rate", "mean_acceptance_length", "decode_s", "tokens_per_second")
        return {**self.__dict__, **{name: getattr(self, name) for name in derived}}


def _raise_to(counts: list[int], depth: int) -> None:
    """One more at each of the first `depth` positions."""
    counts += [0] * (depth - len(counts))
    for i in range(depth):
        counts[i] += 1
