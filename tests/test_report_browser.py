"""The report as a browser shows it: light, dark, on a phone, in both languages, with long names, and on paper.

Skipped where there is no Chromium, unless SLIPSTREAM_NEED_BROWSER is set: then that fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from advice_sample import advice
from slipstream.advise import report

NAMES = ("chromium", "chromium-browser", "google-chrome")
DARK = "--blink-settings=preferredColorScheme=0"
# What is wider than the window, and where each chart is and how small its letters are. It runs in a frame, as a window
# is never narrower than 500 pixels, and tells the page around it.
MEASURE = """<script>
const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] };
const letters = svg => Math.min(...[...svg.querySelectorAll("text")].map(t =>
  parseFloat(getComputedStyle(t).fontSize) * box(svg)[2] / svg.viewBox.baseVal.width));
const shown = [...document.querySelectorAll("figure svg")].filter(e => box(e)[2] > 0);
const wide = [...document.querySelectorAll("body *")].filter(e =>
  !e.closest("svg, .scroll, thead") && e.getBoundingClientRect().right > innerWidth + 0.5);
const found = parent.document.createElement("pre");
found.id = "measured";
found.textContent = JSON.stringify({
  inner: innerWidth, scroll: document.documentElement.scrollWidth, wide: wide.map(e => e.tagName + "." + e.className),
  charts: Object.fromEntries(shown.map(e => [e.closest("figure").id, box(e)])), letters: shown.map(letters),
});
parent.document.body.append(found);
</script></body>"""


@cache
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found:
        return found
    if os.environ.get("SLIPSTREAM_NEED_BROWSER"):
        pytest.fail("SLIPSTREAM_NEED_BROWSER is set, and there is no Chromium on PATH")
    pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages and pictures are kept; all that is asked of the browser is asked once."""
    browser()
    return tmp_path_factory.mktemp("report")


def run(folder: Path, html: str, width: int, height: int, *options: str) -> str:
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}",
        *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def picture(folder: Path, html: str, width: int, height: int, *options: str) -> Image.Image:
    file = folder / "picture.png"
    file.unlink(missing_ok=True)
    run(folder, html, width, height, f"--screenshot={file}", *options)
    with Image.open(file) as image:
        return image.convert("RGB")


def measured(folder: Path, html: str, width: int) -> dict[str, Any]:
    """What MEASURE found in a copy of the page that lets it run."""
    copy = re.sub(r"<meta http-equiv[^>]*>", "", html).replace("</body>", MEASURE)
    frame = f'<iframe style="width:{width}px;height:1000px;border:0" srcdoc="{escape(copy)}"></iframe>'
    dom = run(folder, f"<!doctype html><body>{frame}</body>", 1200, 1000, "--dump-dom")
    found = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.S)
    assert found, "the page's script did not run"
    value: dict[str, Any] = json.loads(unescape(found[1]))
    assert value["inner"] == width
    return value


def brightness(image: Image.Image) -> float:
    """Of the border of 6 pixels, 0 to 255."""
    grey = image.convert("L")
    edge = [grey.crop((0, 0, 6, image.height)), grey.crop((image.width - 6, 0, image.width, image.height))]
    values = [v for strip in edge for v in strip.tobytes()]
    return sum(values) / len(values)


def colours(image: Image.Image) -> int:
    return len(image.getcolors(1 << 24) or ())


def test_it_is_light_and_full_and_every_chart_has_its_place(folder: Path) -> None:
    html = report.html(advice())
    places = measured(folder, html, 1100)["charts"]
    image = picture(folder, html, 1100, 3200)
    assert image.size == (1100, 3200) and brightness(image) > 230
    assert list(places) == ["chart-speedups", "chart-acceptance", "chart-staircase", "chart-memory"]
    for name, (left, top, width, height) in places.items():
        assert left >= 0 and left + width <= 1100 and width > 300 and 120 < height < 700, name
        chart = image.crop((int(left), int(top), int(left + width), int(top + height)))
        strong = sum(n for n, (r, g, b) in chart.getcolors(1 << 24) or () if max(r, g, b) - min(r, g, b) > 80)
        assert colours(chart) > 50 and strong > 300, f"{name} is empty"
        blank = sum(n for n, colour in chart.getcolors(1 << 24) or () if colour == (255, 255, 255))
        assert 0.2 < blank / (chart.width * chart.height) < 0.97, name


def test_dark_is_dark_and_its_letters_are_light(folder: Path) -> None:
    dark = picture(folder, report.html(advice()), 1100, 1600, DARK)
    assert brightness(dark) < 40
    grey = dark.convert("L").crop((110, 60, 990, 560))  # the verdict
    histogram = grey.histogram()
    assert sum(histogram[:60]) > 0.8 * sum(histogram), "the ground is not dark"
    assert sum(histogram[200:]) > 500, "no light letters"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [360, 768])
def test_nothing_is_wider_than_the_screen(folder: Path, lang: str, width: int) -> None:
    found = measured(folder, report.html(advice(), lang), width)
    assert found["scroll"] <= width and not found["wide"]
    assert len(found["charts"]) == 4 and min(found["letters"]) >= 8.5  # pixels
    for left, _, wide, height in found["charts"].values():
        assert left >= 0 and wide > 0.55 * width and height > 90


def test_long_names_do_not_widen_it(folder: Path) -> None:
    long = "kind-without-a-single-break-" * 6
    text = advice().model_dump_json().replace('"chat"', json.dumps(long)).replace("qwen2.5-coder-0.5b", "d" * 120)
    found = measured(folder, report.html(type(advice()).model_validate_json(text)), 360)
    assert found["scroll"] <= 360 and not found["wide"]


def test_a_phone_shows_chinese(folder: Path) -> None:
    image = picture(folder, report.html(advice(), "zh"), 390, 844)
    english = picture(folder, report.html(advice(), "en"), 390, 844)
    assert image.size == (390, 844) and brightness(image) > 230 and colours(image) > 100
    assert image.tobytes() != english.tobytes()


def test_it_prints_on_pages(folder: Path) -> None:
    file = folder / "report.pdf"
    run(folder, report.html(advice()), 1100, 1000, f"--print-to-pdf={file}", "--no-pdf-header-footer", DARK)
    data = file.read_bytes()
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", data))
    assert data.startswith(b"%PDF-") and 3 <= pages <= 9
