"""The report: one page that needs nothing beside it, a summary in Markdown, and the charts as pictures.

All are made from an advice alone. Each function raises UnknownName for a language that is not spoken; those that write
raise InputError for a place that cannot be written, and replace files whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.advise import charts
from slipstream.advise.advice import Advice
from slipstream.advise.drawing import chinese_fonts
from slipstream.advise.page import view
from slipstream.errors import InputError
from slipstream.files import write_whole

if TYPE_CHECKING:
    from jinja2 import Environment

_WIDTHS = {"speedups": 840, "acceptance": 400, "staircase": 400, "memory": 840}  # pixels, beside a phone's
_NARROW = 320
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def html(advice: Advice, lang: str = "en") -> str:
    """A whole page: no script, nothing from outside, light and dark, for screens of 360 pixels and for paper."""
    drawn = {
        chart.name: {
            "title": chart.title, "alt": chart.alt, "wide": chart.svg(_WIDTHS[chart.name]), "narrow": chart.svg(_NARROW)
        }
        for chart in charts.every(advice, lang)
    }  # fmt: skip
    template = _templates(True).get_template("report.html.j2")
    return template.render(view(advice, lang), charts=drawn, bar=_bar) + "\n"


def markdown(advice: Advice, lang: str = "en") -> str:
    """The verdict, the table of kinds, and how to reproduce it."""
    predictions = {v.kind: charts.predicted_speedup(advice, v) for v in advice.verdicts}
    said = _templates(False).get_template("report.md.j2").render(view(advice, lang), predictions=predictions)
    return re.sub(r"\n{3,}", "\n\n", said).strip() + "\n"


def png(advice: Advice, lang: str = "en") -> dict[str, bytes]:
    """The charts by name, light; in English where the system has no font with Chinese characters."""
    made = charts.every(advice, lang)  # an unknown language is refused, fonts or not
    if lang == "zh" and not chinese_fonts():
        made = charts.every(advice, "en")
    return {chart.name: chart.png() for chart in made}


def write_html(advice: Advice, path: Path, lang: str = "en") -> None:
    write_whole(path, html(advice, lang))


def write_markdown(advice: Advice, path: Path, lang: str = "en") -> None:
    write_whole(path, markdown(advice, lang))


def write_png(advice: Advice, folder: Path, lang: str = "en") -> list[Path]:
    """One file a chart, in a folder that is made if need be; the files that were written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot make the folder {folder}: {e.strerror}", "choose another one") from e
    pictures = {folder / f"{name}.png": picture for name, picture in png(advice, lang).items()}
    for path, picture in pictures.items():
        write_whole(path, picture)
    return list(pictures)


def _templates(escape: bool) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("slipstream", "data"), autoescape=escape, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    found.filters.update(cell=_cell, fenced=_fenced)
    return found


def _bar(share: float) -> float:
    """Per cent of a bar's length."""
    return round(100 * min(max(share, 0.0), 1.0), 1)


def _cell(text: Any) -> str:
    """On one line of Markdown, as it is: names are no markup."""
    line = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
