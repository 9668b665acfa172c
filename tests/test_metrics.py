"""The server's metrics are the sums of what its answers report, at any moment, and `bench --endpoint` reads them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from helpers import PROMPT, Hits, make_drafter, markov_table, toy_engine
from slipstream.advise.counters import Reading, between, combine, from_timings, read
from slipstream.aio import AsyncEngine
from slipstream.core.stats import Stats
from slipstream.core.types import SamplingParams
from slipstream.engine import Engine
from slipstream.errors import ContextError, InputError
from slipstream.generation import Generation, Request
from slipstream.models.toy import ToyTokenizer
from slipstream.serve.metrics import Metrics
from slipstream.worker import State
from test_accounts import DropsOne
from test_async import FailsOnce

N, LIMIT = 8, 20.0
TABLE = markov_table(N, seed=4)
IDLE = State("ok", "", 3, 0, 0, 0.0, 1.0)
T = TypeVar("T")


class Page:
    """A rendered page: `page("name_total", label="value")` is a number, without the prefix; `labels` what there is."""

    def __init__(self, metrics: Metrics, state: State = IDLE) -> None:
        body, kind = metrics.render(state)
        assert kind.startswith("text/plain") and "version=0.0.4" in kind
        self.text = body.decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.samples = {(s.name, *sorted(s.labels.items())): s.value for f in self.families for s in f.samples}

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[("slipstream_" + name, *sorted(labels.items()))]

    def by(self, name: str, label: str) -> dict[str, float]:
        return {dict(rest)[label]: n for (full, *rest), n in self.samples.items() if full == "slipstream_" + name}

    def spec(self, name: str) -> float:
        return self(f"spec_decode_num_{name}_total")


def served(metrics: Metrics, drafter: Any = "random", n_slots: int = 3, **settings: Any) -> AsyncEngine:
    n_ctx = settings.get("n_ctx", 512)
    made = make_drafter(drafter, TABLE, N, n_ctx, n_slots) if isinstance(drafter, str) else drafter
    return AsyncEngine(lambda: toy_engine(TABLE, N, made, n_slots=n_slots, **settings), watch=metrics)


def run(main: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(main, LIMIT)

    return asyncio.run(limited())


async def until_idle(engine: AsyncEngine) -> None:
    while engine.state.active or engine.state.waiting:
        await asyncio.sleep(0.001)


def assert_sums(page: Page, generations: Sequence[Generation]) -> None:
    """What the page says is what these choices report, which are all that there were."""
    results = [g.result() for g in generations]
    total = Stats()
    for result in results:
        total = total.plus(result.stats)
    assert page.spec("drafts") == total.verify_steps
    assert page.spec("draft_tokens") == total.verified
    assert page.spec("accepted_tokens") == total.accepted
    assert page.spec("emitted_tokens") == total.emitted_verifying
    assert page.spec("discarded_tokens") == total.discarded
    assert page("padded_tokens_total") == total.padded
    assert page("steps_total") == page("tokens_per_step_count") == total.steps
    assert page("step_tokens_total") == page("tokens_per_step_sum") == total.emitted
    assert page("prompt_tokens_total") == sum(r.usage.prompt_tokens for r in results)
    assert page("cached_prompt_tokens_total") == sum(r.usage.cached_tokens for r in results)
    assert page("cache_hits_total") == sum(r.usage.cached_tokens > 0 for r in results)
    assert page("generated_tokens_total") == sum(r.usage.completion_tokens for r in results)
    for key in ("verified", "accepted"):
        assert page.by(f"spec_decode_drafter_{key}_tokens_total", "drafter") == {
            name: counts[key] for name, counts in total.by_drafter.items()
        }
    accepted = page.by("spec_decode_num_accepted_tokens_per_pos_total", "position")
    deep = len(total.verified_per_position)
    assert list(accepted) == [str(i) for i in range(deep)]
    assert list(accepted.values()) == (total.accepted_per_position + [0] * deep)[:deep]
    assert list(page.by("spec_decode_num_drafts_per_pos_total", "position").values()) == total.verified_per_position
    reasons = [r.finish_reason for r in results]
    assert page.by("requests_finished_total", "finish_reason") == {
        reason: reasons.count(reason) for reason in ("stop", "length", "cancelled")
    }
    assert page("request_seconds_count") == page("queue_wait_seconds_count") == len(results)
    assert page("time_to_first_token_seconds_count") == sum(bool(r.ids) for r in results)


def test_t13_four_verified_rounds_and_a_draft_thrown_away() -> None:
    metrics = Metrics()
    hits = Hits(TABLE, N, [0, 3, 8, 5, 2, *[None] * 50])

    async def main() -> Generation:
        engine = served(metrics, hits, policy=DropsOne(8, drop=3))
        *_, last = [event async for event in engine.run([Request(PROMPT, max_tokens=25)])]
        await engine.close()
        return last.generation

    generation, page = run(main()), Page(metrics)
    assert (page.spec("drafts"), page.spec("draft_tokens"), page.spec("accepted_tokens")) == (4, 32, 13)
    assert (page.spec("emitted_tokens"), page.spec("discarded_tokens")) == (17, 8)
    accepted = page.by("spec_decode_num_accepted_tokens_per_pos_total", "position")
    assert list(accepted.items()) == [(str(i), n) for i, n in enumerate([3, 3, 2, 1, 1, 1, 1, 1])]
    assert set(page.by("spec_decode_num_drafts_per_pos_total", "position").values()) == {4}
    assert page("spec_decode_drafter_verified_tokens_total", drafter="hits") == 32
    assert page("spec_decode_drafter_accepted_tokens_total", drafter="hits") == 13
    assert (page("generated_tokens_total"), page("step_tokens_total")) == (25, 24)
    assert page("steps_total") == 5 + 6 and page("forwards_total") == 1 + 5 + 6  # the first one reads the prompt
    assert page("tokens_per_step_bucket", le="1.0") == 1 + 1 + 6 and page("tokens_per_step_bucket", le="8.0") == 10
    assert page("requests_finished_total", finish_reason="length") == 1
    assert_sums(page, [generation])


@pytest.mark.parametrize("n_slots", [1, 3])
@pytest.mark.parametrize("kind", ["none", "random", "self", "suffix"])
def test_sums_over_many_requests_at_once(kind: str, n_slots: int) -> None:
    """Stop strings, end tokens, caps, several choices and cancelled ones are all in."""
    metrics = Metrics()
    requests = [
        Request([1 + i % 6, 2, 3], max_tokens=5 * i, sampling=SamplingParams(1.0, seed=i), stop=stop, reuse_cache=True)
        for i in range(8)
        for stop in ((), ("bb", "ga"))
    ]

    async def ask(engine: AsyncEngine, choices: Sequence[Request], leave: int) -> list[Generation]:
        seen: dict[Generation, None] = {}
        stream = engine.run(choices)
        async for event in stream:
            seen[event.generation] = None
            if event.chunk is not None and event.chunk.tokens:
                leave -= 1
            if not leave:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        return list(seen)

    async def main() -> list[Generation]:
        engine = served(metrics, kind, n_slots, ends=(7,), n_ctx=20_000)
        asked = [ask(engine, [r], -1) for r in requests]
        asked += [ask(engine, [requests[4], requests[11], requests[15]], -1)]
        found = [g for group in await asyncio.gather(*asked) for g in group]
        # Alone, so that it has a slot at once: a choice that is cancelled while it waits has nothing to count.
        left = await ask(engine, [Request(PROMPT, max_tokens=None, ignore_end=True)], 3)
        await until_idle(engine)
        await engine.close()
        return [*found, *left]

    generations, page = run(main()), Page(metrics)
    assert len(generations) == len(requests) + 4
    assert_sums(page, generations)
    assert page("requests_finished_total", finish_reason="cancelled") == 1
    assert generations[-1].result().usage.completion_tokens >= 3
    assert page("requests_finished_total", finish_reason="stop") > 0
    assert page("requests_finished_total", finish_reason="length") > 0


def test_a_prompt_that_comes_again_is_a_cache_hit() -> None:
    metrics = Metrics()
    prompts = [PROMPT * 3, PROMPT * 4, [5, 5, 5]]  # the second holds the first; the third shares nothing

    async def main() -> None:
        engine = served(metrics, n_slots=1)
        for prompt in prompts:
            await engine.generate(prompt, max_tokens=1, reuse_cache=True)
        await engine.close()

    run(main())
    page = Page(metrics)
    assert page("cache_hits_total") == 1 and page("cached_prompt_tokens_total") == 15
    assert page("prompt_tokens_total") == 15 + 20 + 3


class Ticks:
    """A clock that goes on when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_times_are_counted_by_their_definitions() -> None:
    """Deliveries of 1, 4 and 9 tokens, 0.2 s, 0.4 s and 0.9 s apart; the request came 2 s before its slot."""
    clock = Ticks()
    metrics = Metrics(clock)
    engine = toy_engine(TABLE, N, Hits(TABLE, N, [3, 8]), 8)
    generation = engine.submit(Request(PROMPT, max_tokens=14))
    metrics.started(generation, 2.0)
    for seconds, n in ((0.2, 1), (0.4, 4), (0.9, 9)):
        clock.now += seconds
        chunks = engine.step()
        assert len(chunks[generation].tokens) == n
        metrics.stepped(chunks, seconds)
    metrics.finished(generation, 3.5)
    page = Page(metrics)
    assert page("time_to_first_token_seconds_sum") == pytest.approx(2.2)
    assert page("inter_token_seconds_count") == 13
    assert page("inter_token_seconds_sum") == pytest.approx(0.4 + 0.9)
    assert page("inter_token_seconds_bucket", le="0.06") == 0 and page("inter_token_seconds_bucket", le="0.15") == 13
    assert page("queue_wait_seconds_sum") == 2.0 and page("request_seconds_sum") == 3.5
    assert page("busy_seconds_total") == pytest.approx(1.5)
    assert page.by("requests_finished_total", "finish_reason") == {"stop": 0, "length": 1, "cancelled": 0}


def test_a_step_for_several_takes_its_time_once() -> None:
    metrics = Metrics()
    engine = toy_engine(TABLE, N, "random", n_slots=3)
    generations = [engine.submit(Request([1 + i, 2, 3], max_tokens=20)) for i in range(3)]
    for generation in generations:
        metrics.started(generation, 0.0)
    times = Stats()
    while any(not g.done for g in generations):
        chunks = engine.step()
        record = next(iter(chunks.values())).record
        assert record is not None
        times.draft_s += record.draft_s
        times.forward_s += record.forward_s
        times.verify_s += record.verify_s
        metrics.stepped(chunks, 1.0)
    page = Page(metrics)
    assert page("forwards_total") == page("busy_seconds_total") < page("steps_total")
    assert page("draft_seconds_total") == pytest.approx(times.draft_s)
    assert page("forward_seconds_total") == pytest.approx(times.forward_s)
    assert page("verify_seconds_total") == pytest.approx(times.verify_s)


def test_what_fails_is_counted_by_kind() -> None:
    metrics = Metrics()

    async def main() -> None:
        engine = AsyncEngine(lambda: Engine(FailsOnce(TABLE, N, n_slots=2), ToyTokenizer([b"a"] * N)), watch=metrics)
        with pytest.raises(InputError):
            await engine.generate([N + 1])
        failed = await asyncio.gather(*(engine.generate([1, 2, 3]) for _ in range(2)), return_exceptions=True)
        assert all(isinstance(e, ContextError) for e in failed)
        await engine.generate([1, 2, 3], max_tokens=4)
        await engine.close()

    run(main())
    page = Page(metrics)
    assert page.by("requests_failed_total", "kind") == {"InputError": 1, "ContextError": 2}
    assert page.by("requests_finished_total", "finish_reason") == {"stop": 0, "length": 1, "cancelled": 2}


def test_the_state_of_the_moment() -> None:
    page = Page(Metrics(), State("ok", "", slots=4, active=3, waiting=7, busy_s=0.0, usual_s=1.0))
    assert (page("slots"), page("active_slots"), page("queue_length")) == (4, 3, 7)


def test_every_page_is_consistent_in_itself_whoever_reads_it() -> None:
    metrics, pages, over = Metrics(), list[Page](), threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        try:
            while not over.is_set():
                pages.append(Page(metrics))
        except BaseException as e:
            failures.append(e)

    async def main() -> None:
        engine = served(metrics, "self", 3, n_ctx=2000)
        await asyncio.gather(*(engine.generate([1 + i % 5, 2], max_tokens=300) for i in range(6)))
        await engine.close()

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        run(main())
    finally:
        over.set()
        for reader in readers:
            reader.join(LIMIT)
    assert not failures and not any(reader.is_alive() for reader in readers)
    pages.append(Page(metrics))
    assert pages[-1]("generated_tokens_total") == 6 * 300
    assert len({page("steps_total") for page in pages}) > 2, "nobody looked while it ran"
    for page in pages:
        assert page("steps_total") == page("tokens_per_step_count")
        assert page("step_tokens_total") == page("tokens_per_step_sum")
        assert page.spec("accepted_tokens") <= page.spec("draft_tokens")
        for name in ("accepted_tokens", "draft_tokens"):
            key = "accepted" if name == "accepted_tokens" else "verified"
            assert sum(page.by(f"spec_decode_drafter_{key}_tokens_total", "drafter").values()) == page.spec(name)
        heard = page("inter_token_seconds_count") + page("time_to_first_token_seconds_count")
        assert heard == page("generated_tokens_total")  # no prompt was cached: first deliveries are one token


def test_each_server_counts_for_itself_and_every_metric_says_what_it_means() -> None:
    one, other = Metrics(), Metrics()
    one.failed(InputError("x"))
    assert Page(one)("requests_failed_total", kind="InputError") == 1
    assert Page(other).by("requests_failed_total", "kind") == {}
    page = Page(one)
    names = [f.name for f in page.families]
    assert len(names) == len(set(names)) and all(name.startswith("slipstream_") for name in names)
    texts = [f.documentation for f in page.families]
    assert all(text.endswith(".") and len(text) > 20 for text in texts) and len(texts) == len(set(texts))
    assert not re.search("_created", page.text)


# -- bench --endpoint ----------------------------------------------------------------------------------------------


def reading(metrics: Metrics) -> Reading:
    found = read(Page(metrics).text)
    assert found is not None and found.engine == "Slipstream"
    return found


@pytest.mark.parametrize("kind", ["random", "self", "none"])
def test_bench_reads_the_same_from_the_page(kind: str) -> None:
    metrics = Metrics()

    async def main() -> tuple[Reading, Stats, int]:
        engine = served(metrics, kind)
        await engine.generate([1, 2, 3], max_tokens=30)
        before = reading(metrics)
        result = await engine.generate(PROMPT, max_tokens=50)
        await engine.close()
        return before, result.stats, len(result.ids)

    before, stats, n = run(main())
    found, alone = between(before, reading(metrics), n)
    assert alone and combine(from_timings(None, n), found, alone) == (found, True)
    assert (found.drafted, found.accepted, found.drafts) == (stats.verified, stats.accepted, stats.verify_steps)
    assert (found.emitted, found.forwards) == (stats.emitted, stats.steps)
    assert found.mean_acceptance_length == stats.mean_acceptance_length
    if stats.verify_steps:
        assert found.per_position is not None
        deep = len(stats.accepted_per_position)
        assert list(found.per_position[:deep]) == stats.accepted_per_position and not sum(found.per_position[deep:])
        assert found.length_with_draft == pytest.approx(stats.emitted_verifying / stats.verify_steps)
    assert not between(before, reading(metrics), n + 1)[1], "somebody else's tokens"
