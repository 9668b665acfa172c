"""The verdict: should drafting be on for this work, and with what? It claims no more than the intervals allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.advise.advice import ALL, Decision, Speed, Verdict
from slipstream.advise.candidates import PLAIN, Candidate
from slipstream.advise.interval import Ratio

WORTH = 1.05  # a gain below this is not worth the memory and the trouble
SAME = 0.98  # of the best speed: what is as good, so that the cheaper way is taken
HOPE = 1.10  # a gain that cannot be ruled out from here on is worth more prompts
FREE = 0.99  # a drafter without a model that is no slower than this may stay on


@dataclass(frozen=True)
class Judged:
    """A way to draft on one kind of work; `bytes` is the memory that it takes beside the target."""

    way: Candidate
    bytes: int
    speed: Speed


def decide(ratio: Ratio) -> Decision:
    """Where the interval leaves it open whether there is a gain worth having, only more prompts can tell."""
    if ratio.interval is None:
        return "too few prompts"
    low, high = ratio.interval
    if low > 1 and ratio.value >= WORTH:
        return "on"
    if high < 1:
        return "off"
    return "not worth it" if high < HOPE else "too few prompts"


def best(judged: Sequence[Judged], preferred: str = "") -> Judged:
    """The fastest of those that are on, or of all where none is; among those as good, the preferred one, else the one
    that takes least memory, then the first.

    Raises ValueError for none.
    """
    certain = [j for j in judged if decide(Ratio(j.speed.speedup, j.speed.interval)) == "on"] or judged
    fastest = max(j.speed.speedup for j in certain)
    good = [j for j in certain if j.speed.speedup >= SAME * fastest]
    return min(good, key=lambda j: (j.way.draft != preferred, j.bytes))


def verdict(kind: str, judged: Sequence[Judged], measured: bool, prompts: int, preferred: str = "") -> Verdict:
    """On the best way for one kind of work, or for ALL."""
    winner = best(judged, preferred)
    decision = decide(Ratio(winner.speed.speedup, winner.speed.interval))
    return Verdict(
        kind=kind, decision=decision, draft=winner.way.draft, speed=winner.speed, measured=measured, prompts=prompts
    )


def choose(judged: Sequence[Judged], measured: bool, prompts: int) -> tuple[str, Verdict]:
    """The way that a plan takes, and the verdict on it. Where nothing is certain to gain, a drafter that needs no model
    and costs no time may stay; else it is plain decoding, and the verdict says what the best way would do."""
    found = verdict(ALL, judged, measured, prompts)
    if found.decision == "on":
        return found.draft, found
    free = [j for j in judged if j.way.model is None and j.speed.speedup >= FREE and _may_gain(j.speed)]
    if not free:
        return PLAIN, found
    stays = verdict(ALL, free, measured, prompts)
    return stays.draft, stays


def _may_gain(speed: Speed) -> bool:
    return speed.interval is None or speed.interval[1] >= 1
