"""Figures as SVG text for a page and as PNG: colours that follow the page's theme, fonts, and how wide words are.

A figure is measured in CSS pixels: at 72 dots an inch, matplotlib's points are just that.
"""

from __future__ import annotations

import io
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Name of the CSS variable -> colour of the light theme, which PNG files take. Blue, orange, green, purple, … can be
# told apart by colour-blind people; nothing is said by colour alone all the same.
COLOURS = {
    "ink": "#1c2126", "muted": "#5b656f", "line": "#dde1e5", "paper": "#ffffff", "on": "#0069b4", "off": "#b84700",
    "unsure": "#6a747e", "c1": "#0072b2", "c2": "#c75300", "c3": "#00825e", "c4": "#a84f86", "c5": "#806600",
    "c6": "#2f92c9", "c7": "#454d56", "soft": "#c3d9ea",
}  # fmt: skip
CHINESE = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti", "Microsoft YaHei", "SimHei",
    "Arial Unicode MS", "Droid Sans Fallback",
)  # fmt: skip
TEXT, SMALL = 13.0, 12.0  # pixels
_WIDE, _DPI = 720, 2 * 72  # of a PNG


@dataclass(frozen=True)
class Chart:
    """`title` says what it shows, `alt` does so for those who cannot see it; `draw(width)` makes the figure.

    `svg` takes the width in CSS pixels at which letters have their size; `light` colours only, or the page's own.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[float], Figure] = field(repr=False)

    def svg(self, width: float) -> str:
        """An <svg> element whose ids no other chart's share; its colours are variables of the page (COLOURS)."""
        raw = io.StringIO()
        with _style(f"{self.name} {width:.0f}"):
            self.draw(width).savefig(raw, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
        return _for_page(raw.getvalue(), f"{self.name}-{width:.0f}-")

    def png(self) -> bytes:
        raw = io.BytesIO()
        with _style(self.name):
            figure = self.draw(_WIDE)
            title = wrapped(self.title, int(_WIDE / 16 / 0.55))
            height = 72 * figure.get_figheight()
            figure.text(0, 1 + 14 / height, title, size=16, weight="bold", va="bottom", color=COLOURS["ink"])
            figure.savefig(raw, format="png", dpi=_DPI, bbox_inches="tight", pad_inches=0.3, facecolor=COLOURS["paper"])
        return raw.getvalue()


_METADATA = ("Date", "Creator", "Format", "Type")


@contextmanager
def _style(salt: str) -> Iterator[None]:
    """Nothing of the user's own matplotlib settings; text stays text, and is never taken for a formula."""
    import logging
    import warnings

    import matplotlib

    settings: dict[str, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False, "font.size": TEXT,
        "font.family": [*chinese_fonts(), "DejaVu Sans"], "axes.unicode_minus": False,
    }  # fmt: skip
    settings["font.family"].insert(0, settings["font.family"].pop())  # Latin letters first
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        matplotlib.rcdefaults()
        params: Any = matplotlib.rcParams
        params.update(settings)
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        yield


def chinese_fonts() -> list[str]:
    """Fonts of this system that are known to have Chinese characters."""
    from matplotlib import font_manager

    there = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in CHINESE if name in there]


def _for_page(svg: str, prefix: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<defs>\s*<style.*?</defs>\s*", "", svg, count=1, flags=re.S)  # it would hold for the whole page
    for name in ("width", "height"):
        svg = re.sub(rf'(<svg\b[^>]*?) {name}="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = re.sub(r' id="([^"]+)"', rf' id="{prefix}\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"font(-family)?: ((?:[\w.]+ )*?[\d.]+px )?[^;\"]*", _font, svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"^<svg ", '<svg aria-hidden="true" focusable="false" stroke-linejoin="round" ', svg).strip()


def _font(found: re.Match[str]) -> str:
    """Size and weight stay; the letters are the page's."""
    if found[1]:
        return "font-family: inherit"
    words = (found[2] or "").split()
    weight = "; font-weight: 700" if "bold" in words or "700" in words else ""
    return f"font-size: {words[-1]}{weight}" if words else "font-size: inherit"


# -- drawing -----------------------------------------------------------------------------------------------------------


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure and axes that fill it, in pixels from the upper left corner."""
    figure = blank(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return figure, axes


def blank(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasAgg(figure)
    return figure


def panel(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Bare axes, their sides that many pixels from the figure's."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    box = left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height
    axes = figure.add_axes(box)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=COLOURS["muted"], pad=5)
    axes.set_axisbelow(True)
    return axes


def words_width(text: str, size: float = TEXT) -> float:
    """Pixels, about; a little more than most fonts need."""
    return sum(size * (1.05 if unicodedata.east_asian_width(c) in "WF" else 0.6) for c in text)


def label(text: str, most: int = 30) -> str:
    """A name of the user's own as one short line of printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def wrapped(text: str, columns: int) -> str:
    """Lines of at most so many Latin letters, or half as many Chinese ones."""
    if any(unicodedata.east_asian_width(c) in "WF" for c in text):
        columns //= 2
    return textwrap.fill(text, max(columns, 8))
