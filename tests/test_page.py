"""The page at /: what it sends, and what it shows of real answers."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import httpx
import pytest
from playwright.sync_api import expect

from live import live
from pages import DAYS, EVIL, TOLD, Open, Toy, chunks, event, pretend, priced, record, said, send, start, toy

pytest_plugins = ("page_fixtures",)


def test_an_answer_of_a_real_model_with_its_origins_and_numbers(server: str, open_page: Open) -> None:
    with open_page(server) as page:
        seen = record(page)
        send(page, DAYS, max_tokens=100, system="Answer shortly.", seed=7)
        request, body = seen[0]
        assert request["messages"] == [
            {"role": "system", "content": "Answer shortly."},
            {"role": "user", "content": DAYS},
        ]
        assert (request["seed"], request["temperature"], request["max_tokens"], request["top_p"]) == (7, 0, 100, 1)
        stream = chunks(body)
        told = next(c["speculative"] for c in stream if "mode" in c.get("speculative", {}))
        segments = [s for c in stream for s in c.get("speculative", {}).get("segments", [])]
        text = "".join(s["text"] for s in segments)
        assert text and text == "".join(c["delta"].get("content") or "" for x in stream for c in x["choices"])
        assert said(page) == text
        looks = {"target": "o0", "suffix": "o1", "predicted": "o3"}
        spans = page.locator(".answer .text span").evaluate_all("all => all.map(e => [e.textContent, e.className])")
        assert spans == [[s["text"], looks[s["origin"]]] for s in segments]
        assert told["accepted"] > 10, "nothing was accepted, so nothing is shown"
        answer = page.locator(".answer")
        expect(answer).to_contain_text(f"{told['accepted']} of {told['verified']} guesses")
        expect(answer.locator("[data-figure=acceptance]")).to_have_text(f"{100 * told['acceptance_rate']:.0f} %")
        expect(answer.locator("[data-figure=length]")).to_have_text(f"{told['mean_acceptance_length']:.2f}")
        expect(answer.locator("[data-figure=speed]")).to_have_text(f"{told['tokens_per_second']:.1f} tok/s")
        expect(answer.locator("[data-figure=steps]")).to_have_text(str(told["steps"]))
        guessed = told["by_drafter"]["suffix"]["accepted"]
        share = f"{100 * guessed / (told['emitted'] + told['first_tokens']):.0f} %"
        expect(answer.locator(".legend")).to_contain_text(f"suffix {share}")
        expect(answer.locator(".notes")).to_contain_text("seed 7")
        marked = answer.locator(".text .o1").first
        assert "suffix" in (marked.get_attribute("title") or "")
        line = "e => [getComputedStyle(e).textDecorationLine, getComputedStyle(e).backgroundColor]"
        plain = answer.locator(".text .o0").first.evaluate(line)
        assert marked.evaluate(line)[0] == "underline" and plain[0] == "none" and marked.evaluate(line)[1] != plain[1]


def test_side_by_side_is_the_same_text_sooner(server: str, open_page: Open) -> None:
    with open_page(server) as page:
        seen = record(page)
        send(page, DAYS, both=True, temperature=0.8)
        bodies = [request for request, _ in seen]
        assert [b["speculative"]["mode"] for b in bodies] == ["off", "auto"]
        assert bodies[0] | {"speculative": 0} == bodies[1] | {"speculative": 0} and isinstance(bodies[0]["seed"], int)
        assert said(page, "plain") == said(page) != ""
        expect(page.locator("#same")).to_contain_text("identical")
        told = [c["speculative"] for _, body in seen for c in chunks(body) if "mode" in c.get("speculative", {})]
        slow, fast = (t["tokens_per_second"] for t in told)
        assert page.locator("#ratio").text_content() == f"{fast / slow:.2f}×"
        expect(page.locator("#ratio_words")).to_contain_text(f"{fast:.1f} instead of {slow:.1f}")
        plain = page.locator(".answer[data-name=plain]")
        expect(plain.locator(".why")).to_be_hidden()
        assert plain.locator(".text span:not(.o0)").count() == 0


def test_side_by_side_runs_one_after_the_other(open_page: Open) -> None:
    model = Toy()
    with live(toy(model)) as url, open_page(url) as page:
        send(page, "x", both=True)
        expect(page.locator("#same")).to_contain_text("identical")
        assert model.together == 1 and len(model.forwards) > 60
        assert page.locator(".answer[data-name=speculative] .text .o1").count() > 5


@pytest.mark.parametrize(
    ("verify", "lossy", "why"),
    [("exact", False, "near-tie"), ("typical", True, "lossy"), ("block", False, "keeps the")],
)
def test_texts_that_differ_are_told_where_and_why(
    toy_server: str, open_page: Open, verify: str, lossy: bool, why: str
) -> None:
    with open_page(toy_server) as page:
        end = event(finish="stop", told=TOLD | {"verify": verify, "lossy": lossy}) + "data: [DONE]\n\n"
        pretend(page, event(("so 🙂 be it", "target")) + end, event(("so 🙂 is", "target")) + end)
        send(page, "x", both=True)
        expect(page.locator("#same")).to_contain_text("from character 6 on: plain “be it”, speculative “is”")
        expect(page.locator("#same")).to_contain_text(why)
        assert page.locator("#comparison").get_attribute("data-same") == "false"


def test_why_nothing_was_drafted_and_which_drafter_is_paused(toy_server: str, open_page: Open) -> None:
    reason = "suffix paused: it had nothing to say"
    told = TOLD | {"active": False, "reason": reason, "drafters": {"suffix": "paused: it had nothing to say"}}
    with open_page(toy_server) as page:
        pretend(page, event(("text", "target")) + event(finish="length", told=told) + "data: [DONE]\n\n")
        send(page, "x")
        expect(page.locator(".why")).to_have_text(f"Nothing was drafted: {reason}")
        expect(page.locator(".notes")).to_contain_text("suffix · paused: it had nothing to say")
        expect(page.locator(".answer .pill")).to_have_text("token limit")


def test_ticks_and_optional_fields_reach_the_server(server: str, open_page: Open) -> None:
    with open_page(server) as page:
        boxes = page.locator("#drafter_list input")
        expect(boxes).to_have_count(2)
        schema = {"enum": ["alpha", "beta"]}
        page.locator("#settings").evaluate("e => e.open = true")
        page.get_by_label("suffix").uncheck()
        with page.expect_request("**/v1/chat/completions") as asked:
            send(page, "Say a word.", prediction='"beta"', schema=json.dumps(schema))
        body = asked.value.post_data_json
        assert body["speculative"] == {"mode": "auto", "detail": True, "drafters": ["predicted"]}
        assert body["prediction"] == {"type": "content", "content": '"beta"'}
        assert body["response_format"]["json_schema"]["schema"] == schema
        assert json.loads(said(page)) in ("alpha", "beta")
        page.get_by_label("predicted", exact=True).uncheck()
        with page.expect_request("**/v1/chat/completions") as asked:
            send(page, "Say a word.", prediction="", schema="", max_tokens=5)
        assert asked.value.post_data_json["speculative"]["mode"] == "off"
        assert not {"prediction", "response_format"} & set(asked.value.post_data_json)
        expect(page.locator(".answer h2")).to_have_text("Plain")


def test_a_bad_schema_is_told_at_its_field_and_not_sent(toy_server: str, open_page: Open) -> None:
    with open_page(toy_server) as page:
        page.on("request", lambda r: pytest.fail("it was sent") if "completions" in r.url else None)
        start(page, "x", schema="{nonsense")
        schema = page.locator("#schema")
        assert "not JSON" in schema.evaluate("e => e.validationMessage")
        schema.fill("[1]")
        assert "object" in schema.evaluate("e => e.validationMessage")
        page.locator("#settings").evaluate("e => e.open = false")
        page.click("#send")  # the closed settings open, so that the fault is seen
        expect(page.locator("#settings")).to_have_attribute("open", "")
        schema.fill("{}")
        assert schema.evaluate("e => e.validity.valid")


def test_a_models_text_is_never_html(toy_server: str, open_page: Open) -> None:
    with open_page(toy_server) as page:
        send(page, "x", max_tokens=60)
        text = said(page)
        assert EVIL.decode() in text and "漢字🙂" in text and "\n  indented\n" in text
        assert page.locator(".text img").count() == 0 and page.evaluate("window.hit") is None
        assert "  indented" in page.locator(".text").inner_text()  # white space is shown as it is
        expect(page.locator("#server")).to_contain_text("<b>toy</b>")


def test_the_staircase_marks_the_sizes_that_were_used(open_page: Open) -> None:
    with live(toy(policy=priced())) as url, open_page(url) as page:
        bars = page.locator("#prices rect")
        expect(bars).to_have_count(16)
        titles = bars.locator("title").all_text_contents()
        assert titles[0] == "1 tokens: 10.0 ms" and titles[15] == "16 tokens: 40.0 ms"
        assert titles[5] == "6 tokens: 16.0 ms"
        heights = bars.evaluate_all("all => all.map(e => e.height.baseVal.value)")
        assert heights[15] / heights[0] == pytest.approx(4) and heights == sorted(heights)
        assert page.locator("#prices .used").count() == 0
        seen = record(page)
        send(page, "x", max_tokens=60)
        steps = [c["speculative"]["step"] for c in chunks(seen[0][1]) if c.get("speculative", {}).get("step")]
        sizes = [s["verified"] + s["padded"] + 1 for s in steps if not s["prefilled"]]
        assert max(sizes) > 1
        for n in set(sizes):
            bar = page.locator("#prices .used", has_text=re.compile(f"^{n} tokens:.*; {sizes.count(n)} steps"))
            expect(bar).to_have_count(1)
        assert page.locator("#prices .used").count() == len(set(sizes))
        counts = page.locator("#prices .count").all_text_contents()
        assert counts == [str(sizes.count(n)) for n in sorted(set(sizes))]


BOXES = "all => all.map(e => [e.textContent, e.getBBox().x, e.getBBox().x + e.getBBox().width])"


@pytest.mark.parametrize("times", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_staircases_words_have_room(toy_server: str, open_page: Open, width: int, times: float) -> None:
    with open_page(toy_server, viewport={"width": width, "height": 800}) as page:
        props = httpx.get(f"{toy_server}/props").json()
        props["prices"]["target"] = [[n, times * (0.013 + n / 1000)] for n in range(1, 33)]
        page.route("**/props", lambda r: r.fulfill(json=props))
        page.reload()
        expect(page.locator("#prices rect")).to_have_count(16)
        boxes = page.locator("#prices text").evaluate_all(BOXES)
        inner = page.locator("#prices svg").evaluate("e => e.viewBox.baseVal.width")
        assert len(boxes) > 10 and [b for b in boxes if b[1] < 0 or b[2] > inner] == []
        sizes = [b for b in boxes if b[0].isdigit() and b[0] != "0"]
        assert sizes[0][0] == "1" and sizes[-1][0] == "16"
        assert all(right < left for (_, _, right), (_, left, _) in pairwise(sizes))


def test_a_policy_without_prices_says_so(server: str, open_page: Open) -> None:
    with open_page(server) as page:
        expect(page.locator("#prices_note")).to_contain_text("measures no prices")


READ = """async ([path, bytes, cuts]) => {
  const { events } = await import(path);
  const found = [];
  for (const size of cuts) {
    const parts = [];
    for (let i = 0; i < bytes.length; i += size) parts.push(new Uint8Array(bytes.slice(i, i + size)));
    const body = new ReadableStream({ start(c) { parts.forEach(p => c.enqueue(p)); c.close(); } });
    const all = [];
    for await (const data of events(body)) all.push(data);
    found.push(all);
  }
  return found;
}"""


def test_events_survive_every_cut(toy_server: str, open_page: Open) -> None:
    text = "\ufeffdata: 漢字🙂\r\n\r\n: a comment\r\ndata:one\rdata: two\r\revent: x\nid: 3\n\n\n"
    text += "data\n\ndata:  é\n\ndata: a\r\ndata: b\r\n\r\n"
    stream = text.encode()
    expected = ["漢字🙂", "one\ntwo", "", " é", "a\nb"]
    with open_page(toy_server) as page:
        cuts = [*range(1, 9), len(stream)]
        assert page.evaluate(READ, [f"{toy_server}/static/stream.js", list(stream), cuts]) == [expected] * len(cuts)
