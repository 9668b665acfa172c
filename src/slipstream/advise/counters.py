"""What servers count of their drafts, brought to one definition, the one of core/stats.py.

drafted: tokens that the target verified. accepted: of these, the ones it would have said. drafts: forwards that
verified some. Acceptance rate: accepted / drafted. Mean acceptance length: tokens of an answer after its first (which
the reading of the prompt gives) over the forwards that they took; a forward adds one token of the target's own to the
accepted ones, so it took emitted - accepted of them. At a stop inside a draft servers count accepted tokens that nobody
is sent: the length is then too high, by less than one draft in an answer.

How each server's own names map to that:

- llama.cpp, in an answer's `timings`: `draft_n` is counted when a draft is proposed, but a draft that is too short is
  dropped, and a long one cut, before that: every counted token is verified. Where a cache cannot be cut, a draft that
  was accepted in part is verified twice and counted once. Both fields are left out when nothing was drafted. `/metrics`
  adds up the same numbers, and has drafts (`num_drafts`) and positions too; beyond a million it rounds them to six
  digits, so that they no longer fit the answer and are left out.
- vLLM counts in `/metrics` only. Draft tokens that a grammar rules out are not counted in newer versions; steps without
  a draft are in none of its counters.
- Both call 1 + accepted / drafts the mean acceptance length: tokens of a forward *that had a draft*. Here that is
  `length_with_draft`; it is the higher of the two wherever some forwards had none.
- SGLang has gauges: values of its last few steps, whoever asked for them. The difference of two readings means nothing,
  so they are shown as they are, and never beside a request. Its length counts the bonus token; its rate counts it too
  (on both sides of the fraction) in older versions only.
- Slipstream's own server means what this module means. At a stop it counts what was delivered. Where nothing of a
  prompt was left to read, the first token comes with a step of its own: the forwards are then one more than here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_FIELDS = {
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
    "spec_decode_num_drafts": "drafts",
    "tokens_predicted": "generated",  # llama.cpp
    "generation_tokens": "generated",  # vLLM, SGLang
    "generated_tokens": "generated",  # Slipstream
}
_POSITIONS = "spec_decode_num_accepted_tokens_per_pos"
_OURS = "^(slipstream)_"  # Prometheus keeps colons for rules, so our own names have none
_GAUGES = frozenset({"spec_accept_length", "spec_accept_rate"})
_ENGINES = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang", "slipstream": "Slipstream"}


@dataclass(frozen=True)
class Counters:
    """Of one answer or of several; None is what the server does not tell. `emitted`: without each answer's first token.

    `unsaid`: the server leaves drafts out of an answer that had none, so it may be one without drafting.
    """

    drafted: int | None = None
    accepted: int | None = None
    drafts: int | None = None
    emitted: int | None = None
    per_position: tuple[int, ...] | None = None  # accepted tokens at each depth of their drafts
    unsaid: bool = False

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.accepted is not None and self.drafted else None

    @property
    def forwards(self) -> int | None:
        """Of the target, prompt reading left out; at least the ones that had a draft."""
        if self.emitted is None or self.accepted is None:
            return None
        return max(self.emitted - self.accepted, self.drafts or 0)

    @property
    def mean_acceptance_length(self) -> float | None:
        return self.emitted / self.forwards if self.emitted and self.forwards else None

    @property
    def length_with_draft(self) -> float | None:
        return 1 + self.accepted / self.drafts if self.accepted is not None and self.drafts else None

    @property
    def by_position(self) -> list[float]:
        """Shares of the drafts whose token at depth 1, 2, … was accepted."""
        return [n / self.drafts for n in self.per_position] if self.drafts and self.per_position else []

    def as_dict(self) -> dict[str, Any]:
        counts = ("drafted", "accepted", "drafts", "emitted")
        derived = ("forwards", "acceptance_rate", "mean_acceptance_length", "length_with_draft", "by_position")
        return {name: getattr(self, name) for name in (*counts, *derived)}


def total(parts: Sequence[Counters]) -> Counters:
    """Over answers of one server. Answers of which nothing is known are in no sum; see `unsaid` for the exception."""
    told = [p for p in parts if p.drafted is not None]
    if not told:
        return Counters(unsaid=any(p.unsaid for p in parts))
    told += [p for p in parts if p.unsaid]
    deepest = max((len(p.per_position) for p in told if p.per_position is not None), default=None)
    complete = all(p.drafts is not None for p in told if not p.unsaid)
    known = all(p.emitted is not None for p in told)
    positions = None
    if deepest is not None and complete:
        filled = ((*(p.per_position or ()), *[0] * deepest)[:deepest] for p in told)
        positions = tuple(sum(column) for column in zip(*filled, strict=True))
    return Counters(
        drafted=sum(p.drafted or 0 for p in told),
        accepted=sum(p.accepted or 0 for p in told),
        drafts=sum(p.drafts or 0 for p in told) if complete else None,
        emitted=sum(p.emitted or 0 for p in told) if known else None,
        per_position=positions,
    )


def from_timings(timings: Mapping[str, Any] | None, tokens: int | None) -> Counters:
    """What llama.cpp says beside an answer of `tokens` tokens."""
    emitted = max(tokens - 1, 0) if tokens is not None else None
    drafted, accepted = (count((timings or {}).get(key)) for key in ("draft_n", "draft_n_accepted"))
    if drafted is None or accepted is None:
        return Counters(emitted=emitted, unsaid=bool(timings) and "predicted_n" in (timings or {}))
    return Counters(drafted, accepted, emitted=emitted)


def count(value: Any) -> int | None:
    """A number of tokens as JSON or a metric holds it; None for anything else."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return int(value) if good else None


@dataclass(frozen=True)
class Reading:
    """One look at `/metrics`: sums over all labels (engines, models). `engine` is "" when no name was known."""

    engine: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)


def read(text: str) -> Reading | None:
    """Prometheus text; None for anything else, such as a web page."""
    from prometheus_client.parser import text_string_to_metric_families

    engine, counts, positions = "", Counter[str](), Counter[int]()
    gauges: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                prefix, _, name = re.sub(_OURS, r"\1:", sample.name).removesuffix("_total").partition(":")
                if prefix not in _ENGINES:
                    continue
                engine, value = _ENGINES[prefix], count(sample.value)
                if name in _GAUGES and math.isfinite(sample.value):
                    gauges.setdefault(name, []).append(sample.value)
                elif name in _FIELDS and value is not None:
                    counts[_FIELDS[name]] += value
                elif name == _POSITIONS and value is not None:
                    positions[int(sample.labels["position"])] += value
    except (ValueError, KeyError, IndexError):  # all that the parser is known to raise for what it cannot read
        return None
    means = {name: sum(values) / len(values) for name, values in gauges.items()}
    return Reading(engine, dict(counts), dict(positions), means)


def between(before: Reading | None, after: Reading | None, tokens: int | None) -> tuple[Counters, bool]:
    """What was counted from one reading to the next, and whether an answer of `tokens` tokens is all that was counted.

    Nothing is known without both readings, and when a counter fell (the server was started anew in between).
    """
    emitted = max(tokens - 1, 0) if tokens is not None else None
    unknown = Counters(emitted=emitted)
    if before is None or after is None or "drafted" not in after.counts:
        return unknown, True
    # A server may show a counter only once it has counted something.
    grown = {key: after.counts[key] - before.counts.get(key, 0) for key in after.counts}
    deep = max(after.positions, default=-1) + 1
    depths = tuple(after.positions.get(i, 0) - before.positions.get(i, 0) for i in range(deep))
    if min([*grown.values(), *depths]) < 0:
        return unknown, True
    alone = tokens is None or grown.get("generated", tokens) == tokens
    found = Counters(
        grown["drafted"], grown.get("accepted"), grown.get("drafts"), emitted, depths if after.positions else None
    )
    return found, alone


def combine(said: Counters, counted: Counters, alone: bool) -> tuple[Counters, bool]:
    """What the answer itself says and what the metrics add; and whether the metrics were of this answer alone."""
    if counted.drafted is None:
        return said, alone
    if said.drafted is not None:
        alone = alone and (said.drafted, said.accepted) == (counted.drafted, counted.accepted)
    elif said.unsaid:
        alone = alone and counted.drafted == 0
    return (counted if alone else said), alone
