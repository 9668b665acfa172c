"""The page when it is stopped, refused, or left alone: nothing is lost, and everything is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import expect

from live import live
from pages import Open, Toy, event, pretend, said, send, start, toy
from slipstream.core.types import Array, Span
from slipstream.errors import ContextError

pytest_plugins = ("page_fixtures",)


def test_stop_frees_the_slot_and_keeps_the_text(open_page: Open) -> None:
    model = Toy(steps=12)
    with live(toy(model)) as url, open_page(url) as page:
        try:
            start(page, "x", max_tokens=3000)
            page.wait_for_function("() => document.querySelector('.text')?.textContent.length > 3")
            assert httpx.get(f"{url}/health").json()["active"] == 1
            page.keyboard.press("Escape")
            page.wait_for_selector("body[data-state=stopped]")
        finally:
            model.gate.set()
        for _ in range(500):
            if httpx.get(f"{url}/health").json()["active"] == 0:
                break
            threading.Event().wait(0.01)
        assert httpx.get(f"{url}/health").json()["active"] == 0
        assert len(model.forwards) < 40, "it went on to its end"
        expect(page.locator(".answer .pill")).to_have_text("stopped")
        assert said(page) and page.locator("#trouble").is_hidden()
        expect(page.locator("#send")).to_be_enabled()
        send(page, "x", max_tokens=5)  # and the slot serves the next one
        expect(page.locator(".answer .pill")).to_have_text("token limit")


def test_the_stop_button_ends_a_comparison_too(open_page: Open) -> None:
    model = Toy(steps=12)
    with live(toy(model)) as url, open_page(url) as page:
        try:
            start(page, "x", max_tokens=3000, both=True)
            expect(page.locator("#comparison")).to_contain_text("when both are done")
            page.click("#stop")
            page.wait_for_selector("body[data-state=stopped]")
        finally:
            model.gate.set()
        expect(page.locator("#comparison")).to_be_hidden()
        expect(page.locator("#stop")).to_be_disabled()
        assert page.evaluate("document.activeElement.id") == "send"


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(open_page: Open) -> None:
    with live(toy(), api_keys=("right",)) as url, open_page(url, refused=(401,)) as page:
        expect(page.locator("#trouble")).to_contain_text("asks for an API key")
        page.fill("#api_key", "wrong")
        page.click("#use_key")
        expect(page.locator("#trouble")).to_contain_text("did not take this API key")
        start(page, "x")
        expect(page.locator("#trouble")).to_contain_text("did not take this API key")
        page.wait_for_selector("body[data-state=failed]")
        page.fill("#api_key", "right")
        page.press("#api_key", "Enter")  # asks again what was refused
        page.wait_for_selector("body[data-state=done]")
        expect(page.locator("#trouble")).to_be_hidden()
        assert len(said(page)) > 20
        expect(page.locator("#server")).to_contain_text("toy")
        kept = page.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
        assert kept == [["right"], [], ""]
        page.reload()
        expect(page.locator("#server")).to_contain_text("toy")
        assert page.locator("#trouble").is_hidden()


def test_a_refusal_shows_message_and_hint_and_loses_nothing(open_page: Open) -> None:
    with live(toy(Toy(n_ctx=200))) as url, open_page(url, refused=(400,)) as page:
        prompt = "a word " * 60
        send(page, prompt)
        refused = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": prompt}]})
        message, hint = refused.json()["error"]["message"].split(". hint: ")
        expect(page.locator("#trouble_message")).to_have_text(f"{message}.")
        expect(page.locator("#trouble_hint")).to_have_text(hint)
        assert page.input_value("#prompt") == prompt and page.locator(".answer").count() == 0
        send(page, "short", max_tokens=5)
        page.wait_for_selector("body[data-state=done]")
        expect(page.locator("#trouble")).to_be_hidden()


class Fails(Toy):
    def forward(self, spans: Sequence[Span]) -> list[Array]:
        if len(self.forwards) == 6:
            self.forwards.append(0)
            raise ContextError("no room in the cache", "use fewer slots")
        return super().forward(spans)


def test_an_error_in_the_middle_keeps_what_came(open_page: Open) -> None:
    with live(toy(Fails())) as url, open_page(url) as page:
        send(page, "x", max_tokens=100)
        expect(page.locator("#trouble_message")).to_have_text("no room in the cache.")
        expect(page.locator("#trouble_hint")).to_have_text("use fewer slots")
        expect(page.locator(".answer .pill")).to_have_text("failed")
        assert said(page)
        page.click("#retry")
        page.wait_for_selector("body[data-state=done]")
        expect(page.locator("#trouble")).to_be_hidden()


def test_a_connection_that_breaks_is_told(toy_server: str, open_page: Open) -> None:
    with open_page(toy_server) as page:
        pretend(page, event(("half", "target")), event(("half", "target")) + 'data: {"choi')
        send(page, "x")
        expect(page.locator("#trouble")).to_contain_text("The connection broke")
        assert said(page) == "half"
        page.click("#retry")
        page.wait_for_selector("body[data-state=failed]")
        expect(page.locator("#trouble")).to_contain_text("The connection broke")


def test_a_proxys_page_and_a_busy_server_are_told(toy_server: str, open_page: Open) -> None:
    busy = {"error": {"message": "64 requests wait already. hint: try again later", "type": "x"}}
    with open_page(toy_server, refused=(429, 502)) as page:
        page.route("**/v1/chat/completions", lambda r: r.fulfill(status=502, body="<h1>Bad gateway</h1>"))
        send(page, "x")
        expect(page.locator("#trouble_message")).to_contain_text("HTTP 502")
        assert page.locator("#trouble h1").count() == 0
        page.unroute("**/v1/chat/completions")
        wait = {"Retry-After": "7"}
        page.route("**/v1/chat/completions", lambda r: r.fulfill(status=429, headers=wait, json=busy))
        send(page, "x")
        expect(page.locator("#trouble_message")).to_have_text("64 requests wait already.")
        expect(page.locator("#trouble_hint")).to_have_text("try again later Try again in 7 s.")


def test_a_server_that_is_gone_is_told_and_tried_again(open_page: Open) -> None:
    with live(toy()) as url:
        context = open_page(url, gone=True)
        page = context.__enter__()
        expect(page.locator("#drafting")).to_contain_text("suffix")
    send(page, "x")
    expect(page.locator("#trouble")).to_contain_text("does not answer")
    with page.expect_event("requestfailed"):  # before there is a server again
        page.click("#retry")
    expect(page.locator("#trouble")).to_contain_text("does not answer")
    with live(toy(), port=urlsplit(url).port):
        page.click("#retry")
        page.wait_for_selector("body[data-state=done]")
        assert said(page) and page.locator("#trouble").is_hidden()
        context.__exit__(None, None, None)
