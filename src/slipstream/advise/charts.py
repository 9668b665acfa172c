"""The charts of a report, each from an advice alone: what they show and say. figures.py draws them.

A chart is None where the advice has nothing to show on it. Raises UnknownName for a language that is not spoken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from slipstream.advise import figures
from slipstream.advise.advice import Advice, ModelFacts, Verdict
from slipstream.advise.candidates import PLAIN
from slipstream.advise.drawing import Chart
from slipstream.advise.wording import Words
from slipstream.core.cost import GRID, Curve, break_even
from slipstream.errors import InputError

_NEAR = 1.2  # times the price of one token: hardly more


def every(advice: Advice, lang: str) -> list[Chart]:
    made = (chart(advice, lang) for chart in (speedups, acceptance, staircase, memory))
    return [chart for chart in made if chart is not None]


def _alt(words: Words, name: str, values: Mapping[str, str], **more: str) -> str:
    """What the chart is and what it holds, for those who cannot see it."""
    told = (f"{key}{words('join.colon')}{value}" for key, value in values.items())
    return words(f"chart.{name}_alt", **more) + words("join.stop") + " " + words("join.semicolon").join(told)


def speedups(advice: Advice, lang: str) -> Chart | None:
    """Per kind of work: measured with its interval, predicted below it, and the line of plain decoding."""
    words = Words(lang)
    rows = []
    for v in by_speedup(advice):
        measured, predicted = v.speed.speedup if v.measured else None, predicted_speedup(advice, v)
        if math.isfinite(v.speed.speedup):
            rows.append(figures.Row(words.kind(v.kind), v.decision, measured, predicted, v.speed.interval))
    if not rows:
        return None
    n, total = sum(v.decision == "on" for v in advice.verdicts), len(advice.verdicts)
    which = "none" if not n else "all" if n == total else "some"
    if not all(v.measured for v in advice.verdicts):
        which = "predicted"
    title = words(f"chart.speedups_{which}", n=n, all=total)
    alt = _alt(words, "speedups", {row.kind: words.times(row.measured or row.predicted) for row in rows})
    return Chart("speedups", title, alt, lambda width: figures.speedups(words, rows, width))


def by_speedup(advice: Advice) -> list[Verdict]:
    return sorted(advice.verdicts, key=lambda v: -v.speed.speedup)


def predicted_speedup(advice: Advice, verdict: Verdict) -> float | None:
    """What was predicted for the way to draft that a verdict is on, if anything was."""
    if not verdict.measured:
        return verdict.speed.speedup
    cell = advice.cell(verdict.draft, verdict.kind)
    return cell.predicted.speedup if cell and math.isfinite(cell.predicted.speedup) else None


def acceptance(advice: Advice, lang: str) -> Chart | None:
    """Per kind: of the drafts that had a guess at a position, the share whose guess there was accepted."""
    words, draft = Words(lang), shown_draft(advice)
    series = _series(advice, draft) if draft else {}
    if not draft or not series:
        return None
    ends = [(shares[0], shares[: figures.POSITIONS][-1]) for shares in series.values()]
    falls = sum(last for _, last in ends) < sum(first for first, _ in ends)
    title = words("chart.acceptance" if falls else "chart.acceptance_flat")
    named = {words.kind(kind): shares for kind, shares in series.items()}
    alt = _alt(
        words, "acceptance", {k: " ".join(map(words.percent, shares)) for k, shares in named.items()}, draft=draft
    )
    return Chart("acceptance", title, alt, lambda width: figures.acceptance(words, named, width))


def shown_draft(advice: Advice) -> str | None:
    """The chosen way to draft; where plain decoding is chosen, the one that came nearest to it."""
    if advice.chosen != PLAIN:
        return advice.chosen
    if advice.overall.draft != PLAIN:
        return advice.overall.draft
    best = max(advice.cells, key=lambda c: (c.measured is not None, (c.measured or c.predicted).speedup), default=None)
    return best.draft if best else None


def _series(advice: Advice, draft: str) -> dict[str, list[float]]:
    """Kind -> shares by position, the measured ones where there are any."""
    found = {}
    for cell in advice.cells:
        speeds = [s for s in (cell.measured, cell.predicted) if s is not None and s.by_position]
        if cell.draft == draft and speeds and all(map(math.isfinite, speeds[0].by_position)):
            found[cell.kind] = speeds[0].by_position
    return found


def staircase(advice: Advice, lang: str) -> Chart | None:
    """T(n) in milliseconds, and the share of guesses that must be right for n - 1 free ones to pay."""
    words = Words(lang)
    try:
        prices = _few(Curve.of(advice.target_prices.model_dump()))
    except InputError:
        return None
    told = {str(n): _price(words, n, s, prices) for n, s in zip(prices.sizes, prices.seconds, strict=True)}
    alt = _alt(words, "staircase", told)
    return Chart(
        "staircase", _staircase_title(words, prices), alt, lambda width: figures.staircase(words, prices, width)
    )


def _price(words: Words, n: int, seconds: float, prices: Curve) -> str:
    needed = break_even(n, seconds / prices.seconds[0])
    share = words("chart.never") if needed is None else words.percent(needed)
    return words("join.brackets", text=words.seconds(seconds), inside=share) if n > 1 else words.seconds(seconds)


def _few(prices: Curve) -> Curve:
    """No more sizes than there is room for; changed prices may have hundreds."""
    some = [n for n in GRID if n in prices.sizes]
    if len(prices.sizes) <= len(GRID) or len(some) < 2:
        return prices
    return replace(prices, sizes=tuple(some), seconds=tuple(prices.at(n, prices.context) for n in some))


def _staircase_title(words: Words, prices: Curve) -> str:
    """How many tokens cost about as much as one: the finding that decides whether guesses pay."""
    times = {n: s / prices.seconds[0] for n, s in zip(prices.sizes, prices.seconds, strict=True)}
    if len(times) == 1:
        return words("chart.staircase_one")
    dear = next((i for i, t in enumerate(times.values()) if t > _NEAR), len(times))
    if dear < 2:
        n, t = list(times.items())[1]
        return words("chart.staircase_steep", n=n, more=words.percent(t - 1))
    n, t = list(times.items())[dear - 1]
    return words("chart.staircase_flat" if t >= 1.005 else "chart.staircase_free", n=n, more=words.percent(t - 1))


def memory(advice: Advice, lang: str) -> Chart | None:
    """The target and each draft model: what was counted by use, and what the process grew by."""
    words = Words(lang)
    models = {label: m.memory for label, m in roles(advice, words).items() if m.memory and m.memory.total > 0}
    if not models:
        return None
    draft = draft_model(advice)
    title = words("chart.memory")
    if draft is not None and draft.memory is not None:
        more = words.bytes(draft.memory.measured or draft.memory.total)
        title = words("chart.memory_draft", draft=draft.name, more=more)
    alt = _alt(words, "memory", {name: words.bytes(m.total) for name, m in models.items()})
    return Chart("memory", title, alt, lambda width: figures.memory(words, models, width))


def roles(advice: Advice, words: Words) -> dict[str, ModelFacts]:
    """The models of an advice by role and name."""
    named = {words("join.colon").join((words("chart.target"), advice.target.name)): advice.target}
    return named | {
        words("join.colon").join((words("chart.draft_model"), name)): m for name, m in advice.drafts.items()
    }


def draft_model(advice: Advice) -> ModelFacts | None:
    """The draft model of the chosen way to draft, if it has one."""
    name = next((c.model for c in advice.candidates if c.draft == advice.chosen), None)
    return advice.drafts.get(name) if name else None
