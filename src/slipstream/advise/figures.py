"""How the charts of a report are drawn. Widths are in CSS pixels; heights follow from what is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.advise.advice import Decision, Memory
from slipstream.advise.drawing import COLOURS, SMALL, TEXT, blank, canvas, label, panel, words_width
from slipstream.advise.wording import Words
from slipstream.core.cost import Curve, break_even

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _LINE = COLOURS["ink"], COLOURS["muted"], COLOURS["line"]
_PARTS = {"weights": "c1", "cache": "c6", "compute": "c5", "overhead": "unsure"}
_BAND: dict[str, Any] = {"linewidth": 5, "alpha": 0.4, "solid_capstyle": "round"}
_DIAMOND: dict[str, Any] = {
    "markersize": 5.5, "markerfacecolor": COLOURS["paper"], "markeredgecolor": _MUTED, "markeredgewidth": 1.3
}  # fmt: skip
POSITIONS = 8  # in a draft, that are shown


class Row(NamedTuple):
    """Speed-ups on one kind of work."""

    kind: str
    decision: Decision
    measured: float | None
    predicted: float | None
    interval: tuple[float, float] | None


def speedups(words: Words, rows: Sequence[Row], width: float) -> Figure:
    step, top, bottom = 34, 26, 58
    names = [label(row.kind, 24) for row in rows]
    left = max(map(words_width, names)) + 8
    figure = blank(width, top + step * len(rows) + bottom)
    axes = panel(figure, left, top, 58, bottom)
    seen = [1.0, *(x for r in rows for x in (r.measured, r.predicted, *(r.interval or ())) if x is not None)]
    margin = 0.04 * (max(seen) - min(seen)) + 0.02
    axes.set_xlim(min(seen) - margin, max(seen) + margin)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", labelsize=TEXT, labelcolor=_INK, pad=8)
    _ratios(axes, width)
    axes.axvline(1, color=_INK, linewidth=1.3, zorder=1.5)
    x = (1 - axes.get_xlim()[0]) / (axes.get_xlim()[1] - axes.get_xlim()[0])
    side = "left" if x < 0.15 else "right" if x > 0.85 else "center"
    axes.annotate(
        words("chart.plain"), (1, 1), (0, 5), xycoords=("data", "axes fraction"), textcoords="offset points",
        ha=side, va="bottom", size=SMALL, color=_INK,
    )  # fmt: skip
    for y, row in enumerate(rows):
        _speedup(axes, y, row)
    if any(row.measured is not None for row in rows):
        _key(figure, words, left, ("measured", "predicted"))
    else:
        _key(figure, words, left, ("predicted_interval" if any(row.interval for row in rows) else "predicted",))
    return figure


def _ratios(axes: Axes, width: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4 if width < 500 else 7, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.grid(axis="x", color=_LINE, linewidth=1)


def _speedup(axes: Axes, y: int, row: Row) -> None:
    colour = {"on": COLOURS["on"], "off": COLOURS["off"]}.get(row.decision, COLOURS["unsure"])
    above = y - (0.1 if row.predicted is not None and row.measured is not None else 0)
    if row.interval is not None:
        axes.plot(row.interval, (above, above), color=colour, **_BAND)
    if row.measured is not None:
        axes.plot(row.measured, above, "o", markersize=9, color=colour, markeredgewidth=0)
    if row.predicted is not None:
        axes.plot(row.predicted, y + (0.25 if row.measured is not None else 0), "D", **_DIAMOND)
    axes.annotate(
        Words.times(row.measured if row.measured is not None else row.predicted), (1, y), (10, 0),
        xycoords=("axes fraction", "data"), textcoords="offset points", va="center", size=TEXT, weight="bold",
        color=colour,
    )  # fmt: skip


def _key(figure: Figure, words: Words, left: float, marks: Sequence[str]) -> None:
    """What the marks mean, below the axes."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    axes = figure.add_axes((0, 0, 1, 20 / height))
    axes.set_xlim(0, width)
    axes.set_ylim(0, 20)
    axes.axis("off")
    texts = [words(f"chart.{mark}") for mark in marks]
    x = max(min(left, width - sum(words_width(text, SMALL) + 46 for text in texts)), 0)
    for mark, text in zip(marks, texts, strict=True):
        if mark != "predicted":
            axes.plot((x + 3, x + 21), (10, 10), color=_MUTED, **_BAND)
        if mark == "measured":
            axes.plot(x + 12, 10, "o", markersize=8, color=_MUTED, markeredgewidth=0)
        else:
            axes.plot(x + 12, 10, "D", **_DIAMOND)
        axes.text(x + 30, 10, text, va="center_baseline", size=SMALL, color=_MUTED)
        x += words_width(text, SMALL) + 46


def acceptance(words: Words, series: Mapping[str, Sequence[float]], width: float) -> Figure:
    """A row a kind, a column a position; the stronger a field, the more guesses are right."""
    from matplotlib.patches import Rectangle

    order = sorted(series, key=lambda kind: -series[kind][0])
    names = [label(kind, 20) for kind in order]
    left, step, top = max(map(words_width, names)) + 8, 28, 50
    columns = min(max(map(len, series.values())), POSITIONS)
    field = min((width - left) / columns, 64)
    figure, axes = canvas(width, top + step * len(order))
    axes.text(left, 11, words("chart.accepted"), size=SMALL, color=_MUTED, va="center_baseline")
    for i in range(columns):
        x = left + field * (i + 0.5)
        axes.text(x, 36, str(i + 1), size=SMALL, color=_MUTED, va="center_baseline", ha="center")
    for row, (kind, name) in enumerate(zip(order, names, strict=True)):
        y = top + step * row
        axes.text(left - 8, y + step / 2 - 1, name, size=TEXT, color=_INK, va="center_baseline", ha="right")
        for i, share in enumerate(series[kind][:columns]):
            place, strength = (left + field * i + 1, y), 0.06 + 0.5 * min(max(share, 0), 1)
            axes.add_patch(Rectangle(place, field - 2, step - 2, color=COLOURS["c1"], alpha=strength, linewidth=0))
            middle = (left + field * (i + 0.5), y + step / 2 - 1)
            axes.text(*middle, f"{100 * share:.0f}", size=SMALL, color=_INK, va="center_baseline", ha="center")
    return figure


def staircase(words: Words, prices: Curve, width: float) -> Figure:
    """Above, milliseconds of a forward; below, the share of guesses that must be right. One column a size."""
    at, ms = range(len(prices.sizes)), [1e3 * s for s in prices.seconds]
    figure = blank(width, 380)
    above, below = panel(figure, 46, 30, 8, 172), panel(figure, 46, 268, 8, 46)
    crowded = (width - 50) / len(ms) < 30
    above.bar(at, ms, width=0.72, color=COLOURS["soft"])
    for x, value in zip(at, ms, strict=True):
        above.plot((x - 0.36, x + 0.36), (value, value), color=COLOURS["on"], linewidth=2.5, solid_capstyle="butt")
        if not crowded or x % 2 == 0:
            text = f"{value:.1f}" if max(ms) < 100 else f"{value:.0f}"
            above.annotate(text, (x, value), (0, 5), textcoords="offset points", ha="center", size=SMALL, color=_INK)
    above.set_ylim(0, 1.22 * max(ms))
    _one_by_one(words, above, prices.sizes, ms[0])
    above.set_xticks([])
    for axes, name, y in ((above, "ms", 2), (below, "needed", 240)):
        figure.text(0, 1 - y / 380, words(f"chart.{name}"), size=SMALL, color=_MUTED, va="top")
        axes.set_xlim(-0.5, len(ms) - 0.5)
        axes.grid(axis="y", color=_LINE, linewidth=1)
    above.locator_params(axis="y", nbins=4)
    _needed(words, below, prices, crowded)
    return figure


def _one_by_one(words: Words, axes: Axes, sizes: Sequence[int], one: float) -> None:
    """What the same tokens would cost without drafts, up to where that leaves the axes."""
    top = axes.get_ylim()[1]
    xs, ys = [0.4], [one + 0.4 * (sizes[1] - 1) * one if len(sizes) > 1 else one]
    for x in range(1, len(sizes)):
        if ys[-1] >= top:
            break
        xs.append(x)
        ys.append(sizes[x] * one)
    if len(xs) == 1:
        return
    if ys[-1] > top:
        xs[-1] = xs[-2] + (xs[-1] - xs[-2]) * (top - ys[-2]) / (ys[-1] - ys[-2])
        ys[-1] = top
    axes.plot(xs, ys, color=_MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
    side = ((8, -4), "left") if xs[-1] < len(sizes) / 2 else ((-8, -4), "right")
    axes.annotate(
        words("chart.one_by_one"), (xs[-1], ys[-1]), side[0], textcoords="offset points", size=SMALL, color=_MUTED,
        va="top", ha=side[1],
    )  # fmt: skip


def _needed(words: Words, axes: Axes, prices: Curve, crowded: bool) -> None:
    """The break-even panel; where even perfect guesses do not pay, a cross at the top."""
    shares = [break_even(n, s / prices.seconds[0]) for n, s in zip(prices.sizes, prices.seconds, strict=True)]
    known = [(x, share) for x, share in enumerate(shares) if share is not None and x]
    axes.plot(
        [x for x, _ in known],
        [s for _, s in known],
        "o-",
        color=COLOURS["c2"],
        linewidth=2,
        markersize=4.5,
        clip_on=False,
    )
    for x, share in known:
        if not crowded or x % 2 == 0:
            axes.annotate(
                f"{100 * share:.0f}",
                (x, share),
                (0, 7),
                textcoords="offset points",
                ha="center",
                size=SMALL,
                color=_INK,
            )
    for x, needed in enumerate(shares):
        if needed is None:
            axes.plot(x, 1, "x", color=COLOURS["c2"], markersize=6, markeredgewidth=1.8, clip_on=False)
            axes.annotate(
                words("chart.never"),
                (x, 1),
                (0, -8),
                textcoords="offset points",
                ha="center",
                va="top",
                size=9,
                color=_INK,
            )
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1], [words.percent(share) for share in (0, 0.5, 1)])
    axes.set_xticks(range(len(prices.sizes)), [str(n) for n in prices.sizes])
    axes.set_xlabel(words("chart.tokens"), size=SMALL, color=_MUTED, labelpad=7)


def memory(words: Words, models: Mapping[str, Memory], width: float) -> Figure:
    """For each model a name, a bar of its parts with a mark where it was measured, and the parts' names and sizes."""
    lines = 1 if width > 500 else 2  # of name and total
    block, longest = 88 + 18 * lines, max(max(m.total, m.measured or 0) for m in models.values())
    figure, axes = canvas(width, block * len(models) - 14)
    for i, (name, m) in enumerate(models.items()):
        total = words("chart.memory_counted", size=words.bytes(m.total))
        if m.measured is not None:
            total += words("join.semicolon") + words("chart.memory_measured", size=words.bytes(m.measured))
        room = int((width - (lines == 1) * words_width(total, SMALL)) / (0.62 * TEXT)) - 1
        top, side = block * i, (width, "right") if lines == 1 else (0, "left")
        axes.text(0, top + 10, label(name, room), size=TEXT, weight="bold", color=_INK, va="center_baseline")
        axes.text(side[0], top + 18 * lines - 8, total, size=SMALL, color=_MUTED, va="center_baseline", ha=side[1])
        _bar(words, axes, m, top + 18 * (lines - 1), (width - 4) / longest, width)
    return figure


def _bar(words: Words, axes: Axes, m: Memory, top: float, scale: float, width: float) -> None:
    from matplotlib.patches import Rectangle

    left, column = 0.0, width / len(_PARTS)
    for i, (part, colour) in enumerate(_PARTS.items()):
        size, x = getattr(m, part), i * column
        axes.add_patch(Rectangle((left, top + 32), max(size * scale - 1, 0), 18, color=COLOURS[colour], linewidth=0))
        left += size * scale
        axes.add_patch(Rectangle((x, top + 62), 9, 9, color=COLOURS[colour], linewidth=0))
        axes.text(x + 14, top + 67, words(f"chart.{part}"), size=SMALL, color=_MUTED, va="center_baseline")
        axes.text(x + 14, top + 84, words.bytes(size), size=SMALL, color=_INK, va="center_baseline")
    if m.measured is not None:
        x = m.measured * scale
        axes.plot((x, x), (top + 29, top + 54), color=_INK, linewidth=2, clip_on=False)
        axes.plot(x, top + 28, "v", color=_INK, markersize=6, markeredgewidth=0, clip_on=False)
