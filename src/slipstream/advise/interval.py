"""How sure speed-ups are: 95 % intervals from few prompts, each kind of work weighing what it weighs for the user.

The prompts are the sample: two runs of one prompt say little about the next prompt. The variance of the log of a ratio
of sums comes from its linearisation (the usual one for ratio estimators). Three prompts alone say little about their
spread, so each kind's variance is moderated: drawn towards that of all kinds with PRIOR degrees of freedom (as in Smyth
2004, doi 10.2202/1544-6115.1027, with a fixed prior), and Student's t makes up for the rest. Nothing is drawn at
random: the same data give the same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

ENOUGH = 3  # prompts, under which no interval is given
CONFIDENCE = 0.95
PRIOR = 4.0  # degrees of freedom that the spread of all kinds together counts for, at most
_PER_KIND = 0.6  # of these, what each further kind gives

Times = Mapping[str, Sequence[tuple[float, float]]]  # by kind: plain seconds and seconds of each prompt


@dataclass(frozen=True)
class Ratio:
    """Plain seconds over seconds; `interval` is None for fewer than ENOUGH prompts."""

    value: float
    interval: tuple[float, float] | None


class Ratios:
    """`among`: so many ways are looked at and the best one is taken; the intervals then hold all of them at once
    (Bonferroni). Raises ValueError without any prompt.
    """

    def __init__(self, times: Times, among: int = 1) -> None:
        self._times = {kind: pairs for kind, pairs in times.items() if pairs}
        if not self._times:
            raise ValueError("no prompts")
        self._among = among
        off = {kind: _off(pairs) for kind, pairs in self._times.items()}
        self._freedom = {kind: len(d) - 1 for kind, d in off.items()}
        own = {kind: variance(d) if len(d) > 1 else 0.0 for kind, d in off.items()}
        every = sum(self._freedom.values())
        prior = min(PRIOR, _PER_KIND * (len(off) - 1)) if every else 0.0
        usual = sum(own[k] * n for k, n in self._freedom.items()) / every if every else 0.0
        self._variance = {k: (prior * usual + n * own[k]) / ((prior + n) or 1) for k, n in self._freedom.items()}
        self._prior = prior

    def of(self, kind: str) -> Ratio:
        """One kind's. Raises KeyError for one without prompts."""
        pairs = self._times[kind]
        value = sum(x for x, _ in pairs) / sum(y for _, y in pairs)
        return self._ratio(value, len(pairs), self._variance[kind] / len(pairs), self._prior + self._freedom[kind])

    def all(self, mix: Mapping[str, float]) -> Ratio:
        """All kinds together, each with its weight in the mix; the same for all where none of the mix was run."""
        kinds, n = self._times, sum(map(len, self._times.values()))
        weight = {k: mix.get(k, 0.0) for k in kinds}
        if not sum(weight.values()):
            weight = dict.fromkeys(kinds, 1.0)
        plain = {k: w * fmean(x for x, _ in kinds[k]) for k, w in weight.items()}
        spent = {k: w * fmean(y for _, y in kinds[k]) for k, w in weight.items()}
        value = sum(plain.values()) / sum(spent.values())
        # A kind moves the sum by its share of the time.
        share = {k: (plain[k] / sum(plain.values()) + spent[k] / sum(spent.values())) / 2 for k in kinds}
        errors = {k: share[k] ** 2 * self._variance[k] / len(kinds[k]) for k in kinds}
        error = sum(errors.values())
        # Welch and Satterthwaite: where one kind's spread decides, its prompts alone count.
        known = {k: max(self._prior + n, 1.0) for k, n in self._freedom.items()}
        freedom = error**2 / sum(e * e / known[k] for k, e in errors.items()) if error else 1.0
        # The difference of the two shares is what a kind's length moves it by.
        error += sum(
            (plain[k] / sum(plain.values()) - spent[k] / sum(spent.values())) ** 2 * _length(kinds[k]) / len(kinds[k])
            for k in kinds
        )
        if not sum(self._freedom.values()):  # one prompt of each kind: nothing is known of their spread
            return Ratio(value, None)
        return self._ratio(value, n, error, freedom)

    def _ratio(self, value: float, n: int, variance_of_log: float, freedom: float) -> Ratio:
        if n < ENOUGH:
            return Ratio(value, None)
        spread = _t(max(freedom, 1.0), self._among) * math.sqrt(variance_of_log)
        return Ratio(value, (value * math.exp(-spread), value * math.exp(spread)))


def _off(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """By how much each prompt's times differ from their mean, plain less drafted, as shares of the means."""
    plain, spent = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    return [x / plain - y / spent for x, y in pairs]


def _length(pairs: Sequence[tuple[float, float]]) -> float:
    """Variance of the prompts' lengths, as shares of their mean."""
    mean = fmean(x for x, _ in pairs)
    return variance([x / mean for x, _ in pairs]) if len(pairs) > 1 else 1.0


def _t(freedom: float, among: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / (2 * among)))
