"""The report: all that must be there is, nothing comes from outside, and names are no markup. Charts in
test_charts.py, looks in test_report_browser.py."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from advice_sample import DRAFT, advice
from slipstream.advise import charts, drawing, report
from slipstream.advise.advice import Advice, Prices
from slipstream.advise.wording import LANGUAGES, Words, headline, reason, summary
from slipstream.cli import report as command
from slipstream.errors import InputError, UnknownName

VOID = {"meta", "br", "link", "img", "input", "hr", "col"}
HOSTILE = "<script>alert('x')</script>\"' & | `{{ 7 * 7 }}` $x_{$ </style>"


class Page(HTMLParser):
    """Elements of a page with their texts. Fails on an end tag that closes nothing, or something else."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {[self.elements[i][0] for i in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}, []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.elements[self.open[-1]][0] == tag, f"</{tag}> at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for i in self.open:
            self.elements[i][2].append(data)

    def texts(self, *tags: str) -> list[str]:
        return [" ".join("".join(said).split()) for tag, _, said in self.elements if tag in tags]

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] for _, attrs, _ in self.elements if attribute in attrs]

    @property
    def text(self) -> str:
        return self.texts("body")[0]


@pytest.fixture(scope="module", params=LANGUAGES)
def made(request: pytest.FixtureRequest) -> tuple[str, str, Page]:
    html = report.html(advice(), request.param)
    return request.param, html, Page(html)


def page(**changes: Any) -> Page:
    return Page(report.html(advice(**changes)))


# -- what is there -----------------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(made: tuple[str, str, Page]) -> None:
    lang, _, found = made
    assert found.texts("h1") == [headline(advice(), lang)]
    assert summary(advice(), lang) in found.texts("header")[0]
    for fact in ("1.34×", Words(lang).range((1.246, 1.42)), DRAFT, "669 MiB", "0.63 s", "0.61 s", "24.1", "32.3"):
        assert fact in found.texts("header")[0]


def test_every_kind_has_its_verdict_and_its_numbers(made: tuple[str, str, Page]) -> None:
    lang, _, found = made
    words, rows = Words(lang), found.texts("tr")
    for v in advice().verdicts:
        (row,) = (r for r in rows if words.sentence(reason(v, lang)) in r)
        assert row.startswith(words.kind(v.kind)) and words(f"decision.{v.decision}") in row
        assert v.speed.interval is not None
        for number in (words.times(v.speed.speedup), words.range(v.speed.interval), str(v.prompts)):
            assert number in row
        assert f"{words.percent(v.speed.acceptance_rate)} / 36 %" in row


def test_all_that_a_reader_needs_is_there(made: tuple[str, str, Page]) -> None:
    lang, _, found = made
    words, a = Words(lang), advice()
    for cell in a.cells:
        assert cell.measured is not None
        assert words.times(cell.predicted.speedup) in found.text and words.times(cell.measured.speedup) in found.text
    told = [
        words("page.accuracy", n=14, median="3 %", worst="11 %"), "the two models share no vocabulary", "line 7",
        "not JSON: Expecting value at column 1", words.rule("asks for code"), words.rule("no other rule fits"),
        a.reproduce, a.target.sha256, a.target.file, a.drafts["qwen2.5-coder-0.5b"].file, "llama-cpp-python 0.3.36",
        "2026-11-30 12:00", "A processor", words("page.prompts_used", used=4, all=12), "10.2 ms",
    ]  # fmt: skip
    for part in told:
        assert part in found.text, part


def test_the_sample_shows_who_said_what(made: tuple[str, str, Page]) -> None:
    lang, _, found = made
    marked = {
        "".join(said): attrs["class"] for tag, attrs, said in found.elements if tag == "span" and "class" in attrs
    }
    assert (marked["def total("], marked["numbers"], marked["):\n    return sum("]) == ("o1", "o0", "o2")
    assert marked[Words(lang).origin("suffix")] == "o1" and marked[Words(lang).origin("model")] == "o2"
    css = files("slipstream.data").joinpath("report.css").read_text()
    styles = [re.search(rf"^\.o{i} {{(.*)}}", css, re.M) for i in range(1, 7)]
    lines = [re.sub(r"--mark: [^;]+;?", "", s[1]).strip() for s in styles if s]
    assert len(lines) == 6 and len(set(lines)) == 6  # told apart without colour


def test_a_redacted_advice_has_no_sample() -> None:
    assert "sample" not in page(sample=None).all("id")
    assert "def total" not in report.html(advice(sample=None))
    assert "sample" in page().all("id")


def test_changed_prices_are_a_prediction_and_say_so() -> None:
    changed = advice().settings.model_copy(update={"what_if": ["users=8", "Memory is half as fast."]})
    for lang in LANGUAGES:
        words, found = Words(lang), Page(report.html(advice(settings=changed), lang))
        header = found.texts("header")[0]
        assert words("page.notice_what_if") in header and words("headline.what_if") in header
        assert "users=8" in header and "Memory is half as fast." in header
        assert words("headline.what_if") in report.markdown(advice(settings=changed), lang)
    assert "changed prices" not in page().text


def test_an_interrupted_one_says_so() -> None:
    said = Words("en")("page.notice_interrupted")
    assert said in page(interrupted=True).texts("header")[0] and said not in page().text
    assert said in report.markdown(advice(interrupted=True))


def test_a_report_without_runs_is_called_a_prediction() -> None:
    cells = [c.model_copy(update={"measured": None}) for c in advice().cells]
    verdicts = [v.model_copy(update={"measured": False}) for v in advice().verdicts]
    overall = advice().overall.model_copy(update={"measured": False})
    found = page(cells=cells, verdicts=verdicts, overall=overall, accuracy=None)
    assert "Nothing was run with drafts" in found.texts("header")[0]
    assert "over all your work, predicted" in found.text and "measured, 95 % interval" not in found.text
    assert "No way to draft was run for real" in found.text


def test_other_text_is_an_alarm() -> None:
    cells = [c.model_copy(update={"texts": "mismatch"}) if c.kind == "chat" else c for c in advice().cells]
    assert f"not plain decoding's own for: chat, suffix; chat, {DRAFT}" in page(cells=cells).texts("header")[0]
    assert "not plain decoding's own" not in page().text


def test_plain_decoding_may_be_the_choice() -> None:
    found = page(chosen="none", overall=advice().overall.model_copy(update={"decision": "off", "draft": "suffix"}))
    header = found.texts("header")[0]
    assert "none: plain decoding" in header and "drafted by suffix" in header and "669 MiB" not in header


def test_an_advice_that_knows_next_to_nothing_makes_a_report() -> None:
    empty = {"candidates": [], "cells": [], "verdicts": [], "drafts": {}, "draft_prices": {}, "accuracy": None}
    overall = advice().overall.model_copy(update={"decision": "too few prompts", "draft": "none", "measured": False})
    bare = advice(
        **empty, overall=overall, chosen="none", sample=None, provenance={}, interrupted=True,
        target=advice().target.model_copy(update={"memory": None}),
        target_prices=Prices(sizes=[], seconds=[], context=0, per_past=0, per_past_token=0),
    )  # fmt: skip
    assert charts.every(bare, "en") == [] and report.png(bare) == {}
    for lang in LANGUAGES:
        found = Page(report.html(bare, lang))
        assert Words(lang)("page.kinds_none") in found.text and "figure" not in {tag for tag, *_ in found.elements}
        assert Words(lang)("page.kinds_none") in report.markdown(bare, lang)


# -- form --------------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_outside_and_nothing_runs(made: tuple[str, str, Page]) -> None:
    _, html, found = made
    links = [*found.all("src"), *found.all("href"), *re.findall(r"url\(\s*['\"]?([^)]*)", html)]
    assert links and all(link.startswith("#") for link in links)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {tag for tag, *_ in found.elements}
    assert "@import" not in html and not [a for _, attrs, _ in found.elements for a in attrs if a.startswith("on")]
    assert "default-src 'none'" in next(c for c in found.all("content") if "src" in c)


def test_ids_are_unique_and_what_refers_to_them_finds_them(made: tuple[str, str, Page]) -> None:
    _, html, found = made
    ids = found.all("id")
    assert len(ids) == len(set(ids))
    named = [*found.all("aria-labelledby"), *(link[1:] for link in found.all("href"))]
    named += [link[1:] for link in re.findall(r"url\(([^)]*)\)", html)]
    assert named and set(named) <= set(ids)


def test_it_is_accessible(made: tuple[str, str, Page]) -> None:
    lang, _, found = made
    assert found.elements[0][1]["lang"].startswith(lang)
    levels = [int(tag[1]) for tag, *_ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all(attrs.get("scope") for tag, attrs, _ in found.elements if tag == "th")
    assert len(found.texts("caption")) == len(found.texts("table")) and len(found.texts("figure")) == 4
    assert all(found.texts("figcaption"))
    pictures = [attrs["aria-label"] for _, attrs, _ in found.elements if attrs.get("role") == "img"]
    assert len(pictures) == 4 and all(len(said) > 40 for said in pictures)
    assert "41.0 ms" in pictures[2] and "2.96×" in pictures[0]


def test_chinese_has_no_english_headings() -> None:
    found = Page(report.html(advice(), "zh"))
    said = found.texts("h1", "h2", "h3", "th", "dt", "caption", "strong", "title")
    assert len(said) > 40
    for text in said:
        rest = text.replace(DRAFT, "").replace("qwen2.5-coder-0.5b", "").replace("qwen2.5-coder-1.5b", "")
        assert not re.search(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}", rest), text
        assert re.search("[\u4e00-\u9fff]", rest) or text in (DRAFT, "suffix"), text


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, str]]:
    css = files("slipstream.data").joinpath("report.css").read_text()
    return [dict(re.findall(r"--([\w]+): (#\w{6})", block)) for block in re.findall(r":root {(.*?)}", css, re.S)]


def test_colours_can_be_read_in_both_themes() -> None:
    light, dark = themes()
    assert set(light) == set(dark) == set(drawing.COLOURS) | {"ground"}
    assert drawing.COLOURS.items() <= light.items()
    for theme in (light, dark):
        for text in ("ink", "muted", "on", "off", "unsure"):
            assert contrast(theme[text], theme["paper"]) >= 4.5, text
            assert text == "unsure" or contrast(theme[text], theme["ground"]) >= 4.5, text
        assert all(contrast(theme[f"c{i}"], theme["paper"]) >= 3 for i in range(1, 8))


# -- names are no markup -----------------------------------------------------------------------------------------------


def hostile() -> Advice:
    value = json.loads(advice().model_dump_json())
    text = json.dumps(value).replace(json.dumps("chat")[1:-1], json.dumps(HOSTILE)[1:-1])
    value = json.loads(text.replace("qwen2.5-coder-1.5b", json.dumps(HOSTILE)[1:-1]))
    value["sample"]["segments"].append({"text": HOSTILE, "origin": HOSTILE})
    value["workload"]["left_out"] = [[HOSTILE, HOSTILE]]
    value["settings"]["what_if"] = [HOSTILE]
    return Advice.model_validate(value)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_names_are_escaped(lang: str) -> None:
    html = report.html(hostile(), lang)
    found = Page(html)
    assert "script" not in {tag for tag, *_ in found.elements}
    assert html.count("</style>") == 1 and "<script" not in html and "49" not in found.texts("h1")[0]
    assert " ".join(HOSTILE.split()) in found.text


def test_markdown_keeps_its_table_whatever_the_names() -> None:
    for made in (advice(), hostile()):
        said = report.markdown(made)
        rows = [line for line in said.split("\n") if line.startswith("|")]
        assert len(rows) == 2 + len(made.verdicts)
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {10}
        fence, outside = re.findall(r"^(`{3,})$", said, re.M), re.sub(r"^(`{3,})\n.*\n\1$", "", said, flags=re.M)
        assert "<script" not in outside and len(set(fence)) == 1 and len(fence) == 2


@pytest.mark.parametrize("lang", LANGUAGES)
def test_markdown_holds_verdict_table_and_how_to_reproduce(lang: str) -> None:
    said, words = report.markdown(advice(), lang), Words(lang)
    assert said.index(headline(advice(), lang)) < said.index(summary(advice(), lang)) < said.index("| ")
    assert f"```\n{advice().reproduce}\n```" in said and advice().target.sha256 in said
    for v in advice().verdicts:
        assert v.speed.interval is not None
        numbers = f"{words.times(v.speed.speedup)} ({words.range(v.speed.interval)}) | "
        assert any(line.startswith(f"| {words.kind(v.kind)} |") and numbers in line for line in said.split("\n"))


# -- files and the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Path:
    file = tmp_path / "advice.json"
    file.write_text(advice().model_dump_json(), encoding="utf-8")
    return file


def test_by_default_a_page_is_written_beside_the_advice(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.command(written) == 0
    assert written.with_suffix(".html").read_text(encoding="utf-8") == report.html(advice())
    assert capsys.readouterr().out.strip() == summary(advice(), "en")
    assert {p.name for p in written.parent.iterdir()} == {"advice.json", "advice.html"}


def test_every_output_is_written_in_the_language_asked_for(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written.parent
    page, words, png = folder / "p.html", folder / "m.md", folder / "a" / "b"
    assert command.command(written, html=page, markdown=words, png=png, lang="zh", as_json=True) == 0
    assert 'lang="zh-CN"' in page.read_text(encoding="utf-8") and "保本" in words.read_text(encoding="utf-8")
    told = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    names = [png / f"{name}.png" for name in ("speedups", "acceptance", "staircase", "memory")]
    assert told == {"summary": summary(advice(), "zh"), "written": [str(p) for p in (page, words, *names)]}
    assert all(Path(p).stat().st_size > 500 for p in told["written"])
    assert not list(folder.rglob("*.new")) and not (folder / "advice.html").exists()


def test_bad_input_is_refused_before_anything_is_written(written: Path) -> None:
    folder, before = written.parent, written.read_bytes()
    with pytest.raises(UnknownName):
        command.command(written, lang="fr")
    with pytest.raises(InputError, match="cannot read"):
        command.command(folder / "none.json")
    with pytest.raises(InputError, match="cannot write"):
        command.command(written, html=folder / "no" / "x.html")
    with pytest.raises(InputError, match="would be overwritten"):
        command.command(written, markdown=written)
    with pytest.raises(InputError, match="would be overwritten"):
        command.command(written, html=folder / "x", markdown=folder / "x")
    with pytest.raises(InputError, match="cannot make the folder"):
        command.command(written, png=written / "x")
    (folder / "bad.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match="is not an advice"):
        command.command(folder / "bad.json")
    assert {p.name for p in folder.iterdir()} == {"advice.json", "bad.json"} and written.read_bytes() == before
