"""The price of forwards on a machine that has other things to do: each is timed right after a forward of the target.

A variant that happens to be measured while another program computes would look dear. Taken against the target's own
T(1) of the same moment, the disturbance weighs on both alike; and it is the ratio that a forecast needs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from slipstream.advise.replay import Price
from slipstream.core.ports import Model
from slipstream.core.types import Span

CONTEXT = 128  # tokens behind which prices are measured


class Scale:
    """Weighs models against `target`, in slot 0 of both. `tokens` are some usual ones, used over and over."""

    def __init__(self, target: Model, tokens: Sequence[int]) -> None:
        self.target = target
        self._tokens = [*tokens] * (1 + CONTEXT // len(tokens))
        target.truncate(0, 0)
        self._unit: float | None = None  # seconds of the target's T(1) when the scale was first used

    def price(self, model: Model, sizes: Sequence[int], all_rows: bool, rounds: int) -> Price:
        """Median seconds of forwards over n tokens, sizes in turn; an n between two sizes is padded up.

        `all_rows`: with logits of each token, as verifying needs them, or of the last one.
        """
        model.truncate(0, 0)
        self._time(model, 1, False)  # wake up
        units: list[float] = []
        ratios: dict[int, list[float]] = {n: [] for n in sizes}
        for _ in range(rounds):
            for n in sizes:
                units.append(self._time(self.target, 1, True))
                ratios[n].append(self._time(model, n, all_rows) / units[-1])
        self._unit = self._unit or statistics.median(units)
        seconds = {n: self._unit * statistics.median(r) for n, r in ratios.items()}
        most = max(seconds)

        def price(n: int) -> float:
            return min((s for m, s in seconds.items() if m >= n), default=seconds[most] * n / most)

        return price

    def _time(self, model: Model, n: int, all_rows: bool) -> float:
        """Seconds of one forward behind some context; nothing is taken back but all at once, which every model can."""
        past = model.n_past(0)
        context = min(CONTEXT, model.caps.n_ctx // 2)
        if past < context or past + n > min(4 * CONTEXT, model.caps.n_ctx):
            model.truncate(0, 0)
            for a in range(0, context, model.caps.n_batch):
                self._forward(model, self._tokens[a : min(a + model.caps.n_batch, context)], False)
        new = self._tokens[:n]
        start = time.perf_counter()
        self._forward(model, new, all_rows)
        return time.perf_counter() - start

    def _forward(self, model: Model, tokens: Sequence[int], all_rows: bool) -> None:
        n = len(tokens)
        model.forward([Span(0, tokens, range(-1, n - 1), range(n) if all_rows else (n - 1,))])
        model.keep(0, range(n))
