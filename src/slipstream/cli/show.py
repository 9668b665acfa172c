"""Text coloured by who proposed it, statistics and tables, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from slipstream.cli.common import coloured, console, say

if TYPE_CHECKING:
    from slipstream.advise.measure import Row
    from slipstream.core.types import StepRecord
    from slipstream.generation import Result
    from slipstream.text.detok import Segment

_PALETTE = (32, 36, 35, 33, 34)  # green, cyan, magenta, yellow, blue
TARGET = "target"


class ColouredText:
    """Writes segments to stdout as they are; on a terminal each drafter has its colour, and a legend says which."""

    def __init__(self, legend: bool = True) -> None:
        self._legend = legend
        self._colours: dict[str, int] = {}
        self._on = coloured(sys.stdout)

    def write(self, segments: Iterable[Segment]) -> None:
        for s in segments:
            sys.stdout.write(self._paint(s.text, s.origin) if self._on and s.origin != TARGET else s.text)
        sys.stdout.flush()

    def _paint(self, text: str, origin: str) -> str:
        colour = self._colours.setdefault(origin, _PALETTE[len(self._colours) % len(_PALETTE)])
        return f"\x1b[{colour}m{text}\x1b[0m"

    def end(self) -> None:
        print(flush=True)
        if self._on and self._legend:
            names = "  ".join(self._paint(name, name) for name in self._colours)
            say(f"proposed by: {names}  the target itself: plain")


def percent(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:.0f} %"


def number(x: float | None, digits: int = 1) -> str:
    return "-" if x is None else f"{x:.{digits}f}"


def _share(part: float, whole: float) -> str:
    return percent(part / whole if whole else None)


def statistics(result: Result) -> None:
    """What happened, on stderr."""
    s, usage = result.stats, result.usage
    prompt_speed = (usage.prompt_tokens - usage.cached_tokens) / s.prefill_s if s.prefill_s else None
    table = Table.grid(padding=(0, 2))
    table.add_row("speed", f"{number(s.tokens_per_second)} tok/s, prompt {number(prompt_speed, 0)} tok/s")
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    table.add_row("tokens", f"{usage.completion_tokens} ({result.finish_reason}), prompt {usage.prompt_tokens}{cached}")
    if s.verified:
        thrown = f", {s.discarded} more proposed and not tried" if s.discarded else ""
        table.add_row("acceptance rate", f"{percent(s.acceptance_rate)}: {s.accepted} of {s.verified} tried{thrown}")
        table.add_row("acceptance length", f"{number(s.mean_acceptance_length, 2)} tokens a forward, on average")
        pairs = zip(s.accepted_per_position + [0] * len(s.verified_per_position), s.verified_per_position, strict=False)
        table.add_row("by position", "  ".join(_share(a, v) for a, v in pairs))
        each = (f"{name} {c['accepted']} of {c['verified']}" for name, c in s.by_drafter.items())
        table.add_row("by drafter", ", ".join(each))
    table.add_row(
        "time",
        f"draft {_share(s.draft_s, s.decode_s)}, forward {_share(s.forward_s, s.decode_s)}, "
        f"verify {_share(s.verify_s, s.decode_s)} of {s.decode_s:.2f} s; prompt {s.prefill_s:.2f} s",
    )
    for name, word in result.drafters.items():
        table.add_row(name, word)
    for note in result.notes:
        table.add_row("note", note)
    console(stderr=True).print(table)


def steps(records: Sequence[StepRecord]) -> None:
    """Each step of a run, on stderr: what was considered, what chosen, and what it earned over plain decoding."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("at", "considered", "verified", "by", "expected", "accepted", "draft ms", "forward ms", "earned ms"):
        table.add_column(title, justify="left" if title == "by" else "right")
    for r in records:
        if r.prefilled:
            table.add_row(str(r.position), "", f"prompt: {r.prefilled}", "", "", "", "", f"{1e3 * r.forward_s:.1f}", "")
            continue
        earned = "" if r.plain_s is None else f"{1e3 * (r.emitted * r.plain_s - r.draft_s - r.forward_s):+.1f}"
        by = ", ".join(f"{n} {name}" for name, n in r.verified_origins.items()) or "plain"
        by += f", {r.padded} padding" if r.padded else ""
        expected = "" if r.expected is None else f"{r.expected:.2f}"
        times = f"{1e3 * r.draft_s:.1f}", f"{1e3 * r.forward_s:.1f}"
        table.add_row(str(r.position), str(r.proposed), str(r.verified), by, expected, str(r.accepted), *times, earned)
    console(stderr=True).print(table)


def same(row: Row) -> str:
    """Whether the text stayed the same, in a word."""
    if row.identical is None:
        return "-"
    if row.identical:
        return "yes"
    parts = [f"{n} {word}" for n, word in ((row.near_ties, "near tie(s)"), (row.mismatches, "WRONG")) if n]
    return "but for " + ", ".join(parts)


def rows_table(rows: Sequence[Row], verdicts: Sequence[str]) -> None:
    """The table of a demo or a benchmark, on stdout."""
    intervals = any(r.interval for r in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kind of work")
    for title in ("plain\ntok/s", "speculative\ntok/s", "speed-up"):
        table.add_column(title, justify="right")
    if intervals:
        table.add_column("95 %\ninterval", justify="right")
    for title in ("acceptance\nrate", "acceptance\nlength"):
        table.add_column(title, justify="right")
    table.add_column("same\ntext")
    table.add_column("verdict")
    for r, verdict in zip(rows, verdicts, strict=True):
        low_high = f"{r.interval[0]:.2f}-{r.interval[1]:.2f}" if r.interval else "-"
        table.add_row(
            r.kind,
            number(r.plain_tps),
            number(r.spec_tps),
            "-" if r.speedup is None else f"{r.speedup:.2f}x",
            *([low_high] if intervals else []),
            percent(r.acceptance_rate),
            number(r.mean_acceptance_length, 2),
            same(r),
            verdict,
        )
    console().print(table)
