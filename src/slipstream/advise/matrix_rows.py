"""The rows of a quantisation matrix, and a sentence on each that claims no more than was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.advise.divergence import Divergence, by_kind, summed
from slipstream.advise.matrix import Matrix, Weighed
from slipstream.advise.rehearse import Outcome
from slipstream.advise.variants import PLAIN, Way

SAME = 0.05  # speeds that differ by less are not told apart, nor by less than the times of one file did


@dataclass(frozen=True)
class Row:
    """A target file with a way to draft. Speeds are tokens per second; `speedup` is over the same file without drafts,
    `over_reference` over the reference without drafts; both are predicted unless `measured`. `memory` is bytes.

    `text` and `kinds` are None and empty for the reference, whose text it is.
    """

    target: str
    draft: str
    tps: float
    speedup: float
    over_reference: float
    measured: bool
    in_turn: bool
    spread: float  # of the times for one token, this file's or the reference's: largest over least
    acceptance_rate: float | None
    memory: int
    text: Divergence | None
    kinds: dict[str, Divergence] = field(default_factory=dict)
    speedups: dict[str, float] = field(default_factory=dict)  # by kind
    verdict: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rows(matrix: Matrix) -> list[Row]:
    """All pairs that were measured and rehearsed, the reference without drafts first."""
    found: list[Row] = []
    for target, way, outcomes in matrix.rehearsed():
        row = _row(matrix, target, way, outcomes)
        found.append(Row(**{**vars(row), "verdict": verdict(row, found[0] if found else row)}))
    return found


def _row(matrix: Matrix, target: Weighed, way: Way, outcomes: Sequence[Outcome]) -> Row:
    speedup = _speedup(outcomes)
    verified, accepted = (sum(getattr(o.stats, n) for o in outcomes) for n in ("verified", "accepted"))
    texts = target.texts or []
    kinds = dict.fromkeys(o.kind for o in outcomes)
    return Row(
        target=target.variant.label,
        draft=way.label,
        tps=target.plain_tps * speedup,
        speedup=speedup,
        over_reference=target.plain_tps * speedup / matrix.weighed[matrix.reference.label].plain_tps,
        measured=way is PLAIN,
        in_turn=target.in_turn,
        spread=max(target.spread, matrix.weighed[matrix.reference.label].spread),
        acceptance_rate=accepted / verified if verified else None,
        memory=matrix.rules.needed[target.variant.label, way.label],
        text=summed(texts),
        kinds=by_kind(texts),
        speedups={kind: _speedup([o for o in outcomes if o.kind == kind]) for kind in kinds},
    )


def _speedup(outcomes: Sequence[Outcome]) -> float:
    seconds = sum(o.seconds for o in outcomes)
    return sum(o.plain_s for o in outcomes) / seconds if seconds else 1.0


def verdict(row: Row, reference: Row) -> str:
    """One sentence. `reference` is the row of the reference without drafts."""
    name = row.target if row.draft == PLAIN.label else f"{row.target} with {row.draft}"
    if (row.target, row.draft) == (reference.target, reference.draft):
        return f"{name}: the reference"
    parts = [_speed(row)]
    if row.text is not None:
        t = row.text
        parts.append(f"agrees on {share(t.agreement)} of {t.tokens} greedy tokens, {nats(t.kl)} nats per token")
    elif row.target == reference.target:
        parts.append("the same text")
    change = 100 * (row.memory / reference.memory - 1)
    memory = f"memory {change:+.0f} %" if abs(change) >= 0.5 else "the same memory"
    return f"{name}: {', '.join(parts)}; {memory}"


def _speed(row: Row) -> str:
    over = row.over_reference
    apart = max(over, 1 / over) >= max(1 + SAME, row.spread)
    said = f"{over:.2f}x as fast" if apart else "as fast, as far as can be told"
    if not row.measured:
        said += " (predicted)" if row.acceptance_rate is not None else " (predicted: nothing would be drafted)"
    return said if row.in_turn else f"{said}, not timed in turn with the reference"


def share(x: float) -> str:
    """Percent; never 100 % of something that was not all, nor 0 % of something that was not nothing."""
    if x in (0, 1) or 0.005 <= x < 0.995:
        return f"{100 * x:.0f} %"
    return f"{max(math.floor(1000 * x) / 10, 0.1):.1f} %"


def nats(kl: float) -> str:
    return "0" if kl == 0 else f"{kl:.3f}" if kl >= 0.0005 else "under 0.001"
