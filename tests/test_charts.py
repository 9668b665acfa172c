"""The charts of a report: valid, whole, and true to the advice."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import pytest
from PIL import Image

from advice_sample import KINDS, advice
from slipstream.advise import charts, drawing, report
from slipstream.advise.advice import Prices
from slipstream.advise.wording import LANGUAGES, Words
from slipstream.errors import UnknownName


@pytest.mark.parametrize("lang", LANGUAGES)
def test_charts_are_valid_svg_that_names_the_kinds(lang: str) -> None:
    words = Words(lang)
    made = {chart.name: chart for chart in charts.every(advice(), lang)}
    assert list(made) == ["speedups", "acceptance", "staircase", "memory"]
    for chart in made.values():
        for width in (320, 840):
            svg = chart.svg(width)
            root = ElementTree.fromstring(svg)
            texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
            assert root.get("viewBox", "").startswith(f"0 0 {width} ") and len(texts) > 5
            assert not re.search("#[0-9a-f]{6}", svg), "a colour that does not follow the theme"
            assert "<style" not in svg and "font-family: inherit" in svg
            if chart.name in ("speedups", "acceptance"):
                assert {words.kind(kind) for kind in KINDS} <= texts
    assert {"2.96×", "0.88×", words("chart.plain")} <= _texts(made["speedups"])
    assert {"41", "42", "104"} <= _texts(made["staircase"])
    assert {"1.04 GiB", "468 MiB"} <= _texts(made["memory"])


def _texts(chart: drawing.Chart) -> set[str | None]:
    return {t.text for t in ElementTree.fromstring(chart.svg(840)).iter("{http://www.w3.org/2000/svg}text")}


def test_the_staircase_says_where_it_breaks_even() -> None:
    prices = Prices(sizes=[1, 2, 4], seconds=[0.1, 0.15, 0.41], context=16, per_past=0, per_past_token=0)
    chart = charts.staircase(advice(target_prices=prices), "en")
    assert chart is not None and {"50", "never"} <= _texts(chart)  # 1 + 0.5 = 1.5; no share makes 4.1 of 4
    assert chart.title == "Checking 2 tokens takes 50 % longer than one"
    assert "2: 0.15 s (50 %)" in chart.alt and "4: 0.41 s (never)" in chart.alt


def test_many_sizes_are_thinned_and_wrong_prices_are_not_drawn() -> None:
    sizes = [*range(1, 300)]
    many = Prices(sizes=sizes, seconds=[0.04 + 0.001 * n for n in sizes], context=1, per_past=0, per_past_token=0)
    chart = charts.staircase(advice(target_prices=many), "en")
    assert chart is not None and len(_texts(chart)) < 60
    wrong = many.model_copy(update={"seconds": [0.0] * 299})
    assert charts.staircase(advice(target_prices=wrong), "en") is None


def test_acceptance_is_told_position_by_position() -> None:
    chart = charts.acceptance(advice(), "en")
    assert chart is not None and chart.title == "Guesses further ahead are right less often"
    first, third = f"{100 * KINDS['chat'][3]:.0f}", f"{100 * KINDS['chat'][3] ** 3:.0f}"
    assert {first, third, "6"} <= _texts(chart) and "7" not in {t for t in _texts(chart) if t and len(t) == 1} - {third}
    grows = [
        c.model_copy(update={"measured": c.measured.model_copy(update={"by_position": [0.1, 0.2] * 9})})
        for c in advice().cells
        if c.measured
    ]
    grown = charts.acceptance(advice(cells=grows), "en")
    assert grown is not None and "by how far ahead" in grown.title and "9" not in _texts(grown)


def test_pictures_are_png_and_light(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = report.png(advice())
    assert set(pictures) == {"speedups", "acceptance", "staircase", "memory"}
    for data in pictures.values():
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        image = Image.open(io.BytesIO(data)).convert("L")
        assert image.width > 1200 and image.getpixel((2, 2)) == 255 and image.getextrema()[0] < 80
    monkeypatch.setattr(report, "chinese_fonts", list)
    assert report.png(advice(), "zh") == pictures  # no font: English labels
    with pytest.raises(UnknownName):
        report.png(advice(), "fr")
