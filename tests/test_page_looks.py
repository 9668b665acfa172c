"""The page for everybody: by keyboard, in two languages, light and dark, on a phone, and how it looks.

Screenshots are kept in the folder SLIPSTREAM_SCREENSHOTS, if it is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from live import live, smollm2
from pages import STATIC, TOLD, Open, Toy, event, pretend, send, start, toy, wide
from test_report_browser import brightness, colours

pytest_plugins = ("page_fixtures",)

CODE = "Write a Python class Stack with push, pop, peek and __len__, each with a docstring."


def test_by_keyboard_alone(toy_server: str, open_page: Open) -> None:
    with open_page(toy_server) as page:
        expect(page.locator("#drafting")).to_be_visible()
        page.focus("#prompt")
        page.keyboard.insert_text("x")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("body[data-state=done]")
        assert page.locator("#status").get_attribute("aria-live") == "polite"
        expect(page.locator("#status")).to_have_text("Done.")
        seen: set[str] = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            style = "e => [e.id || e.className || e.tagName, getComputedStyle(e).outlineStyle]"
            name, outline = page.locator(":focus").evaluate(style) if page.locator(":focus").count() else ("", "solid")
            assert outline != "none", f"{name} does not show that it has the focus"
            seen.add(name)
        assert {"both", "send", "temperature", "seed", "schema", "text"} <= seen


def test_every_field_has_a_label_and_nothing_is_inline(toy_server: str, open_page: Open) -> None:
    with open_page(toy_server) as page:
        expect(page.locator("#drafter_list input")).to_have_count(1)
        bare = "all => all.filter(e => ![...e.labels].some(l => l.textContent.trim())).map(e => e.id)"
        assert page.locator("input, textarea").evaluate_all(bare) == []
        assert page.locator("input, textarea").count() > 10
        assert page.locator("[style], [onclick], script:not([src]), style").count() == 0
        policy = page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content") or ""
        assert "default-src 'none'" in policy and "unsafe" not in policy


def test_chinese_where_the_browser_speaks_it(toy_server: str, open_page: Open) -> None:
    with open_page(toy_server, locale="zh-CN") as page:
        expect(page.locator("#send")).to_have_text("发送")
        send(page, "x", both=True)
        expect(page.locator("#same")).to_contain_text("两段文本完全相同")
        assert page.evaluate("document.documentElement.lang") == "zh"
        left = page.locator("label, button, h2, dt, .help").all_inner_texts()
        latin = [t.strip() for t in left if t.strip() and not re.search("[\u4e00-\u9fff]", t)]
        assert set(latin) <= {"Top-p", "suffix"}


def test_every_word_that_is_used_has_both_languages(toy_server: str, open_page: Open) -> None:
    used = set(re.findall(r'data-word(?:-placeholder)?="([^"]+)"', (STATIC / "index.html").read_text()))
    for path in STATIC.glob("*.js"):
        used |= set(re.findall(r'\bsay\([^;]*?"([\w.]+)"', path.read_text(encoding="utf-8")))
    with open_page(toy_server) as page:
        get = "async path => (await import(path)).WORDS"
        words: dict[str, list[str]] = page.evaluate(get, f"{toy_server}/static/words.js")
    assert len(words) > 80 and used - set(words) == set()
    for name, both in words.items():
        assert len(both) == 2 and all(both), name
        assert len({tuple(sorted(re.findall(r"\{\w+\}", text))) for text in both}) == 1, f"{name}: fields differ"
    texts = "".join(p.read_text(encoding="utf-8") for p in STATIC.glob("*.*") if p.name != "words.js")
    families = ("state.", "status.", "trouble.", "text.", "drafter.")  # put together from parts
    assert [n for n in words if not n.startswith(families) and f'"{n}"' not in texts] == []


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.unshift(rgba(getComputedStyle(at).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node; (node = walk.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility() || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const below = ground(e);
    const colour = over(rgba(e.closest("svg") ? style.fill : style.color), below);
    const [a, b] = [light(colour), light(below)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.data.trim().slice(0, 30), e.getAttribute("class") ?? ""]);
  }
  return found;
}"""


LOOKS = """e => {
  for (let i = 0; i < 8; i++) {
    e.append(Object.assign(document.createElement("span"), { className: `o${i}`, textContent: `look ${i} ` }));
  }
}"""


def shown(page: Page) -> None:
    """Everything that can be seen at once: an answer beside a plain one, trouble, and the key's field."""
    page.evaluate("() => { for (const id of ['trouble', 'key']) document.getElementById(id).hidden = false }")
    page.evaluate("() => { document.getElementById('trouble_message').textContent = 'It failed.' }")
    page.locator(".text").last.evaluate(LOOKS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_can_be_read(toy_server: str, open_page: Open, scheme: str) -> None:
    with open_page(toy_server, color_scheme=scheme) as page:
        send(page, "x", both=True)
        shown(page)
        found = page.evaluate(CONTRAST)
        assert len(found) > 80 and {"o1", "o7", "help", "count"} <= {look for _, _, look in found}
        assert [f for f in found if f[0] < 4.5] == []


BEYOND = """all => all
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest("svg, .unseen"))
  .map(e => e.id || e.className)"""


@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_nothing_is_wider_than_the_window(toy_server: str, open_page: Open, width: int, locale: str) -> None:
    long = "WithoutASingleBreak" * 30
    with open_page(toy_server, viewport={"width": width, "height": 800}, locale=locale) as page:
        expect(page.locator("#drafting")).to_be_visible()
        assert wide(page) <= width
        told = TOLD | {"active": False, "reason": long, "notes": [long], "drafters": {"suffix": f"paused: {long}"}}
        answer = event((long, "target"), (long, "suffix")) + event(finish="stop", told=told) + "data: [DONE]\n\n"
        pretend(page, answer, answer)
        send(page, long, both=True)
        shown(page)
        page.locator("#trouble_message").evaluate("(e, text) => { e.textContent = text }", long)
        assert wide(page) <= width
        assert page.locator("body *:visible").evaluate_all(BEYOND) == []


def test_nothing_moves_where_that_is_not_wanted(open_page: Open) -> None:
    for wanted in ("reduce", "no-preference"):
        model = Toy(steps=12)
        with live(toy(model)) as url, open_page(url, reduced_motion=wanted) as page:
            try:
                start(page, "x", max_tokens=3000)
                page.wait_for_selector(".answer[data-state=writing]")
                name = page.locator(".text").evaluate("e => getComputedStyle(e, '::after').animationName")
                assert (name == "none") == (wanted == "reduce")
                page.keyboard.press("Escape")
            finally:
                model.gate.set()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("SLIPSTREAM_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("page")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def priced_server() -> Iterator[str]:
    """As people run it, with a staircase to show. What is drafted hangs on times here, so only looks are judged."""
    with live(smollm2("suffix,recycle,predicted", n_slots=2, policy="priced")) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 360, "light")]
)
def test_pictures(priced_server: str, open_page: Open, pictures: Path, name: str, width: int, scheme: str) -> None:
    with open_page(priced_server, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        send(page, CODE, max_tokens=90, both=name != "phone")
        if name == "phone":
            page.click("#settings summary")
        page.wait_for_function("() => document.querySelectorAll('#prices .used').length")
        page.evaluate("scrollTo(0, 0)")
        file = pictures / f"page-{name}.png"
        page.screenshot(path=file, full_page=True)
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    assert image.width == width and image.height > 900 and colours(image) > 100
    assert brightness(image) < 40 if scheme == "dark" else brightness(image) > 230
