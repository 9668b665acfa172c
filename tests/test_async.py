"""AsyncEngine: requests from anywhere, one thread for the models. Every wait has a limit: a hang is a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from helpers import make_drafter, markov_table, outcome, toy_engine
from slipstream.aio import AsyncEngine
from slipstream.core.types import Array, Span
from slipstream.engine import Engine
from slipstream.errors import ContextError, EngineFailure, InputError, SlipstreamError
from slipstream.generation import Request
from slipstream.models.toy import ToyModel, ToyTokenizer
from test_engine import EXPECTED, REQUESTS

N, LIMIT = 8, 20.0
TABLE = markov_table(N, order=2, seed=12)
T = TypeVar("T")


class Gated(ToyModel):
    """A forward waits until the gate is open, and says that it has begun."""

    def __init__(self, n_slots: int = 1) -> None:
        super().__init__(TABLE, N, n_slots=n_slots)
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        self.begun.set()
        assert self.gate.wait(LIMIT)
        return super().forward(spans)


def gated(n_slots: int = 1) -> tuple[Gated, AsyncEngine]:
    model = Gated(n_slots)
    drafter = make_drafter("random", TABLE, N)
    return model, AsyncEngine(lambda: Engine(model, ToyTokenizer([bytes([97 + i]) for i in range(N)], (7,)), drafter))


def opened(kind: str = "suffix", n_slots: int = 2) -> AsyncEngine:
    drafter = make_drafter(kind, TABLE, N, n_slots=n_slots)
    return AsyncEngine(lambda: toy_engine(TABLE, N, drafter, 4, ends=(7,), n_slots=n_slots))


def run(main: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(main, LIMIT)

    return asyncio.run(limited())


def fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def first_chunk(stream: AsyncIterator[T]) -> T:
    return await stream.__anext__()


@pytest.mark.parametrize("n_slots", [1, 2, 6])
@pytest.mark.parametrize("kind", ["suffix", "random", "self"])
def test_concurrent_requests_equal_their_solo_runs(kind: str, n_slots: int) -> None:
    async def main() -> None:
        engine = opened(kind, n_slots)
        results = await asyncio.gather(*(engine.generate(**fields(r)) for r in REQUESTS * 2))
        assert [outcome(r) for r in results] == EXPECTED[False] * 2
        await engine.close()

    run(main())


def test_streams_give_the_same_text_chunk_by_chunk() -> None:
    async def main() -> None:
        engine = opened()

        async def text(r: Request) -> tuple[str, tuple[int, ...]]:
            chunks = [c async for c in engine.stream(**fields(r))]
            return "".join(c.text for c in chunks), tuple(t.id for c in chunks for t in c.tokens)

        got = await asyncio.gather(*(text(r) for r in REQUESTS))
        assert got == [(e[1], e[0]) for e in EXPECTED[False]]
        await engine.close()

    run(main())


def test_who_is_late_gets_all_that_has_come_in_a_few_batches() -> None:
    async def main() -> None:
        engine = opened()
        request = Request([1, 2, 3], max_tokens=300, ignore_end=True)
        batches = engine.batches([request])
        events = await anext(batches)
        await until(lambda: engine.state.active == 0)  # it has run to its end meanwhile
        sizes = [len(events)]
        async for batch in batches:
            events += batch
            sizes.append(len(batch))
        assert len(events) > 60 and max(sizes) > 30 and len(sizes) < 10
        said = tuple(t.id for e in events if e.chunk for t in e.chunk.tokens)
        assert said == events[-1].generation.result().ids and len(said) == 300 and events[-1].chunk is None
        await engine.close()

    run(main())


def test_leaving_a_stream_frees_the_slot_for_the_one_that_waits() -> None:
    async def main() -> None:
        model, engine = gated(n_slots=1)
        stream = engine.stream([1, 2, 3], max_tokens=400, ignore_end=True)
        await first_chunk(stream)
        waiting = asyncio.create_task(engine.generate([1, 2, 3], max_tokens=5, ignore_end=True))
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await waiting).ids == EXPECTED[False][0][0][:5]  # type: ignore[index]
        assert sum(model.forwards) < 300  # the first one was not run to its end
        await engine.close()

    run(main())


def test_a_cancelled_task_frees_its_slot_even_while_it_waits_for_one() -> None:
    async def main() -> None:
        model, engine = gated(n_slots=1)
        model.gate.clear()
        running = asyncio.create_task(engine.generate([1, 2], max_tokens=400, ignore_end=True))
        await until(model.begun.is_set)
        queued = asyncio.create_task(engine.generate([3, 4], max_tokens=400, ignore_end=True))
        await asyncio.sleep(0)
        for task in (queued, running):
            task.cancel()
        await asyncio.gather(queued, running, return_exceptions=True)
        model.gate.set()
        assert len((await engine.generate([1, 2, 3], max_tokens=3, ignore_end=True)).ids) == 3
        assert sum(model.forwards) < 60
        await engine.close()

    run(main())


def test_errors_reach_the_one_who_asked_and_nobody_else() -> None:
    async def main() -> None:
        engine = opened(n_slots=2)
        bad: list[dict[str, Any]] = [{"prompt": [N]}, {"prompt": [1] * 600}, {"prompt": [1], "verify": "exakt"}]
        tasks = [engine.generate(**b) for b in bad] + [engine.generate(**fields(REQUESTS[0]))]
        *errors, good = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(e).__name__ for e in errors] == ["InputError", "ContextError", "UnknownName"]
        assert all(isinstance(e, SlipstreamError) and e.hint for e in errors)
        assert outcome(good) == EXPECTED[False][0]  # type: ignore[arg-type]
        with pytest.raises(InputError):
            await engine.generate()
        await engine.close()

    run(main())


class FailsOnce(ToyModel):
    def forward(self, spans: Sequence[Span]) -> list[Array]:
        if len(self.forwards) == 3:
            self.forwards.append(0)
            raise ContextError("no room in the cache", "use fewer slots")
        return super().forward(spans)


def test_a_failed_step_reaches_all_its_requests_and_the_engine_lives_on() -> None:
    async def main() -> None:
        engine = AsyncEngine(lambda: Engine(FailsOnce(TABLE, N, n_slots=2), ToyTokenizer([b"a"] * N, (7,))))
        failed = await asyncio.gather(*(engine.generate([1, 2, 3]) for _ in range(2)), return_exceptions=True)
        assert all(isinstance(e, ContextError) for e in failed)
        assert (await engine.generate([1, 2, 3], max_tokens=30, ignore_end=True)).ids == EXPECTED[False][0][0]
        await engine.close()

    run(main())


def test_a_failure_to_open_is_raised_where_it_was_asked_for() -> None:
    def fail() -> Engine:
        raise InputError("no such model", "name another")

    with pytest.raises(InputError, match="no such model"):
        AsyncEngine(fail)


def test_the_models_stay_in_one_thread() -> None:
    seen: set[int] = set()

    class Watched(ToyModel):
        def forward(self, spans: Sequence[Span]) -> list[Array]:
            seen.add(threading.get_ident())
            return super().forward(spans)

    async def main() -> None:
        engine = AsyncEngine(lambda: Engine(Watched(TABLE, N, n_slots=2), ToyTokenizer([b"a"] * N)))
        await asyncio.gather(*(engine.generate([1, 2, i], max_tokens=5) for i in range(4)))
        await engine.close()

    run(main())
    assert len(seen) == 1 and threading.get_ident() not in seen


def test_close_answers_those_who_run_and_those_who_wait() -> None:
    async def main() -> None:
        model, engine = gated(n_slots=1)
        model.gate.clear()
        tasks = [asyncio.create_task(engine.generate([1, i], max_tokens=400)) for i in range(3)]
        await until(model.begun.is_set)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0.01)
        model.gate.set()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert all(isinstance(a, EngineFailure) and "closed" in str(a) for a in answers)
        await closing
        with pytest.raises(EngineFailure, match="closed"):
            await engine.generate([1])
        await engine.close()  # twice is once

    run(main())


def test_a_request_that_comes_while_the_engine_closes_is_answered_too() -> None:
    async def main() -> None:
        model, engine = gated(n_slots=1)
        model.gate.clear()
        first = asyncio.create_task(engine.generate([1], max_tokens=400))
        await until(model.begun.is_set)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0.05)  # the wish to close is in the queue
        late = asyncio.create_task(engine.generate([2], max_tokens=3))
        await asyncio.sleep(0.01)
        model.gate.set()
        try:
            answers = await asyncio.wait_for(asyncio.gather(first, late, return_exceptions=True), 2)
        finally:
            await closing
        assert all(isinstance(a, EngineFailure) for a in answers)

    run(main())


def test_the_engine_outlives_an_event_loop_that_went_away() -> None:
    model, engine = gated(n_slots=2)

    async def leaves() -> None:
        model.gate.clear()
        task = asyncio.create_task(engine.generate([1, 2], max_tokens=400, ignore_end=True))
        await until(model.begun.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def comes() -> None:
        task = asyncio.create_task(engine.generate(**fields(replace(REQUESTS[0]))))
        await asyncio.sleep(0.05)
        assert engine._thread.is_alive()
        assert outcome(await asyncio.wait_for(task, 3)) == EXPECTED[False][0]
        await engine.close()

    run(leaves())  # its loop is closed when the step, which still runs, wants to deliver
    threading.Timer(0.02, model.gate.set).start()
    run(comes())
