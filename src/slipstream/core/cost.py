"""The price of a forward, T(n, context): measured on this machine, then followed while running.

The curve is a staircase, may fall, grows with the context and differs from build to build: nothing of it is assumed.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from slipstream.core.cut import cut
from slipstream.core.ports import Model
from slipstream.core.types import Span
from slipstream.errors import InputError

GRID = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 64)
_NEEDED = (1, 2, 3, 4, 8, 16)  # however long they take
_SHORT, _LONG = 16, 272  # tokens of context at which forwards are timed
_OFTEN = 16  # tokens: larger forwards are timed once
_TIMES = 5  # how often, behind a long past and a short one
_HINTED = 9  # tokens: a forward of a draft model with a hint, at most
_FAST, _SLOW, _FADE = 0.1, 0.1, 0.002


@dataclass(frozen=True)
class Curve:
    """Seconds of a forward of `sizes[i]` tokens at `context` tokens of past, and what each further token of past adds
    to a forward as a whole (`per_past`) and to each of its tokens (`per_past_token`)."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    context: int = 0
    per_past: float = 0.0
    per_past_token: float = 0.0
    spread: float = 1.0  # of the times for one token: median over least; well above 1 when others used the machine

    def __post_init__(self) -> None:
        good = self.sizes and self.sizes[0] == 1 and list(self.sizes) == sorted(set(self.sizes))
        if not good or len(self.sizes) != len(self.seconds) or any(not 0 < s < 1e6 for s in self.seconds):
            raise InputError("a price list needs ascending sizes from 1, with seconds above 0 for each")

    @cached_property
    def _bases(self) -> list[float]:
        """Seconds of a forward of 0, 1, 2, … tokens at the context that was measured."""
        return [0.0, *(_between(self.sizes, self.seconds, n) for n in range(1, 2 * self.sizes[-1] + 64))]

    def at(self, n: int, context: int) -> float:
        base = self._bases[n] if n < len(self._bases) else _between(self.sizes, self.seconds, n)
        seconds = base + (context - self.context) * (self.per_past + n * self.per_past_token)
        return seconds if seconds > base / 4 else base / 4

    def as_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Curve:
        """From `as_dict`. Raises InputError when it is not one."""
        try:
            return cls(
                tuple(int(n) for n in saved["sizes"]),
                tuple(float(s) for s in saved["seconds"]),
                int(saved["context"]),
                *(float(saved[name]) for name in ("per_past", "per_past_token", "spread")),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise InputError(f"not a price list: {e}", "measure again with `slipstream cost`") from e


class Prices:
    """A curve and how today differs from it: a factor for all sizes (a neighbour, heat) and one for each size.

    The factor of a size fades back to 1 while other sizes run: one bad moment does not rule a size out for good.
    """

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.scale = 1.0
        self._own: dict[int, float] = {}
        self._known = _LONG  # the longest context that prices were seen behind

    def strange(self, context: int) -> bool:
        """Prices behind so long a context are no more than a guess, until a plain step was made there."""
        return context > 2 * self._known

    def seconds(self, n: int, context: int) -> float:
        """T(n, context); 0 for no tokens."""
        return self.scale * self._own.get(n, 1.0) * self.curve.at(n, context) if n > 0 else 0.0

    def rescale(self, ratio: float, weight: float = _FAST) -> None:
        """Something took `ratio` times its price: move all prices a little that way."""
        self.scale *= min(max(ratio, 1 / 1.5), 1.5) ** weight

    def observe(self, n: int, context: int, seconds: float) -> None:
        """A forward of `n` tokens took so long. One outlier moves little: ratios are cut to a factor of 1.5."""
        if n < 1 or seconds <= 0:
            return
        ratio = seconds / self.seconds(n, context)
        if self.strange(context):
            self.scale *= min(max(ratio, 0.25), 4.0)
            self._known = context
            return
        self._known = max(self._known, context)
        ratio = min(max(ratio, 1 / 1.5), 1.5)
        own = self._own
        # Only a plain step says what plain steps cost; while none is made, the others may move it, but hardly.
        share = 1.0 if n == 1 else 0.05
        self.scale *= ratio ** (_FAST * share)
        own[n] = min(max(own.get(n, 1.0) * ratio ** (_SLOW * (1.0 - share * _FAST)), 0.25), 4.0) if n > 1 else 1.0
        for other, factor in own.items():
            if other != n:
                own[other] = factor ** (1 - _FADE)


def _between(sizes: Sequence[int], seconds: Sequence[float], n: int) -> float:
    """Straight lines between the sizes that were measured; beyond the last one, on along the last line."""
    i = bisect_left(sizes, n)
    if i < len(sizes) and sizes[i] == n:
        return seconds[i]
    if i == len(sizes):
        if i == 1:
            return seconds[0] * n
        i -= 1
    (a, b), (s, t) = sizes[i - 1 : i + 1], seconds[i - 1 : i + 1]
    return max(s + (t - s) * (n - a) / (b - a), min(s, t))


def measure(
    model: Model,
    clock: Callable[[], float],
    budget_s: float = 4.0,
    most: int | None = None,
    rounds: int = 5,
    last_row: bool = False,
) -> Curve:
    """Time forwards of 1 to `most` new tokens in the empty slot 0, each right behind one of a single token.

    What counts is the median of the ratios: a disturbance, or memory that is slow for a while, weighs on both alike,
    and ratios are what a policy lives on. What a forward takes to be undone belongs to its price. `last_row`: as a
    draft model is asked, for all rows of short forwards (hints) and the last one of longer ones (a backlog). Stops
    after about `budget_s` seconds; sizes that it did not come to lie on straight lines between the others.
    """
    caps = model.caps
    short = min(_SHORT, caps.n_ctx - 2)
    top = max(min(most or caps.max_nodes + 1, caps.max_nodes + 1, caps.n_batch, caps.n_ctx - short - 1), 1)
    sizes = [n for n in (*_NEEDED, *(n for n in GRID if n not in _NEEDED)) if n <= top]
    _read(model, short)
    for n in sizes[:4]:  # warm up
        _time(model, clock, n, last_row)
    start = clock()
    ones: list[float] = []
    ratios: dict[int, list[float]] = {1: [1.0]}
    for number in range(rounds):
        for n in sizes:
            if clock() - start > budget_s and (number or n not in _NEEDED):
                break
            if n > _OFTEN and number:  # dear, and seldom asked for
                continue
            ones.append(_time(model, clock, 1, last_row))
            if n > 1:
                ratios.setdefault(n, []).append(_time(model, clock, n, last_row) / ones[-1])
    one = statistics.median(ones)
    done = {n: one * statistics.median(r) for n, r in sorted(ratios.items())}
    per_past, per_past_token = _growth(model, clock, max(n for n in done if n <= 8), short, last_row)
    model.truncate(0, 0)
    return Curve(tuple(done), tuple(done.values()), short, per_past, per_past_token, one / min(ones))


def _growth(model: Model, clock: Callable[[], float], wide: int, short: int, last_row: bool) -> tuple[float, float]:
    """What a token of past adds to a forward, and to each of `wide` new tokens: one past right after the other."""
    longer = min(_LONG, model.caps.n_ctx - wide - 1)
    if longer < 2 * _SHORT:
        return 0.0, 0.0
    found = []
    for past in (longer, short):
        if cut(model, 0, min(past, model.n_past(0))) != past:
            _read(model, past)
        pairs = [[_time(model, clock, n, last_row) for n in (1, wide)] for _ in range(_TIMES)]
        found.append([statistics.median(t) for t in zip(*pairs, strict=True)])
    one, many = (max(a - b, 0.0) / (longer - short) for a, b in zip(*found, strict=True))
    each = max(many - one, 0.0) / (wide - 1) if wide > 1 else 0.0
    return max(one - each, 0.0), each


def _tokens(model: Model, n: int) -> list[int]:
    return [(17 * i + 5) % model.caps.n_vocab for i in range(n)]


def _read(model: Model, n: int) -> None:
    """Make `n` tokens the past of slot 0."""
    model.truncate(0, 0)
    while (past := model.n_past(0)) < n:
        chunk = min(n - past, model.caps.n_batch)
        model.forward([Span(0, _tokens(model, chunk), range(-1, chunk - 1), ())])
        model.keep(0, range(chunk))


def _time(model: Model, clock: Callable[[], float], n: int, last_row: bool) -> float:
    past = model.n_past(0)
    span = Span(0, _tokens(model, n), range(-1, n - 1), range(n - 1 if last_row and n > _HINTED else 0, n))
    t = clock()
    model.forward([span])
    model.keep(0, () if model.caps.rollback == "free" else range(n))
    seconds = clock() - t
    if model.caps.rollback != "free":  # a state that cannot be cut is read again
        _read(model, past)
    return seconds


def break_even(n: int, times: float) -> float | None:
    """The acceptance rate at which a chain of n - 1 free guesses pays for a forward of `times` the price of a plain
    one: the p with 1 + p + ... + p^(n-1) = times. None when even perfect guesses do not."""
    if times > n:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**i for i in range(n)) < times else (low, p)
    return high
