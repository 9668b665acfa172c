"""For tests of the server's page: toy models for it, how to ask it, and how to read what it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route

from slipstream.core.cost import Curve, Prices
from slipstream.core.policy import Fixed
from slipstream.core.ports import Policy
from slipstream.core.priced import Priced
from slipstream.core.types import Array, Span
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.models.toy import ToyModel, ToyTokenizer, scripted

LIMIT = 30_000  # milliseconds that anything may take
STATIC = Path(__file__).parents[1] / "src" / "slipstream" / "serve" / "static"
EVIL = b"<img src=x onerror=window.hit=1>"
PIECES = [bytes([i]) for i in range(256)] + [EVIL, "漢字🙂".encode(), b"  indented\n", b""]
SAID = [*b"one two\n", 258, *b"one two\n", 256, 257, *b" and so on, one two\n"]
END = 259
OVER = "body[data-state=done], body[data-state=failed], body[data-state=stopped]"
DAYS = "List the days of the week, one on each line, and then list them again in the same order."

Open = Callable[..., AbstractContextManager[Page]]


class Toy(ToyModel):
    """Says SAID over and over. With `steps`, that many forwards run, and then each waits until the gate opens."""

    def __init__(self, said: Sequence[int] = SAID, n_ctx: int = 4096, steps: int | None = None) -> None:
        super().__init__(scripted(said, len(PIECES)), len(PIECES), n_ctx, n_slots=2)
        self.steps, self.gate = steps, threading.Event()
        self.together = 0  # requests in one forward, at most

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        self.together = max(self.together, len(spans))
        if self.steps is not None and len(self.forwards) >= self.steps:
            assert self.gate.wait(LIMIT / 1000)
        return super().forward(spans)


def toy(model: Toy | None = None, policy: Policy | None = None) -> Callable[[], Engine]:
    def open_engine() -> Engine:
        drafter = SuffixDrafter(min_match=1)
        return Engine(model or Toy(), ToyTokenizer(PIECES, (END,)), drafter, policy or Fixed(4), name="<b>toy</b>")

    return open_engine


def priced() -> Priced:
    return Priced(Prices(Curve((1, 2, 4, 8, 16), (0.010, 0.011, 0.012, 0.020, 0.040))))


def send(page: Page, prompt: str, **fields: Any) -> None:
    """Ask and wait for the end, whatever it is. Fields are those of the form by id; True and False are ticks."""
    start(page, prompt, **fields)
    page.wait_for_selector(OVER)


def start(page: Page, prompt: str, **fields: Any) -> None:
    if page.locator("#settings").get_attribute("open") is None:
        page.click("#settings summary")
    for name, value in {"max_tokens": 60, **fields}.items():
        field = page.locator(f"#{name}")
        field.set_checked(value) if isinstance(value, bool) else field.fill(str(value))
    page.fill("#prompt", prompt)
    page.click("#send")


def said(page: Page, name: str = "speculative") -> str:
    return page.locator(f".answer[data-name={name}] .text").evaluate("e => e.textContent")


def record(page: Page) -> list[tuple[dict[str, Any], str]]:
    """Requests for answers with the streams that the server gave, as they come; the page gets each in one piece."""
    seen: list[tuple[dict[str, Any], str]] = []

    def through(route: Route) -> None:
        response = route.fetch()
        seen.append((route.request.post_data_json, response.text()))
        route.fulfill(response=response)

    page.route("**/v1/chat/completions", through)
    return seen


def chunks(body: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def wide(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def event(*segments: tuple[str, str], finish: str | None = None, told: dict[str, Any] | None = None) -> str:
    step = {"verified": 0, "accepted": 0, "emitted": 1, "prefilled": 0, "padded": 0}
    step |= {"draft_s": 0.0, "forward_s": 0.02, "verify_s": 0.0}
    choice = {"index": 0, "delta": {}, "finish_reason": finish}
    spec = {"segments": [{"text": t, "origin": o} for t, o in segments], "step": step, **(told or {})}
    return f"data: {json.dumps({'choices': [choice], 'speculative': spec})}\n\n"


TOLD: dict[str, Any] = {
    "mode": "auto", "active": True, "reason": "", "verify": "exact", "lossy": False, "seed": 1, "drafters": {},
    "steps": 3, "verify_steps": 0, "verified": 0, "accepted": 0, "emitted": 3, "first_tokens": 1, "by_drafter": {},
    "tokens_per_second": 50.0, "mean_acceptance_length": 1.0, "time_saved_s": None, "notes": [],
}  # fmt: skip


def pretend(page: Page, *answers: str) -> None:
    """Answers in the server's place, for what no healthy server says."""
    left = list(answers)
    events = {"content-type": "text/event-stream"}
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=200, headers=events, body=left.pop(0)))
