"""The thread that owns the models: who gets a slot, what is refused, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from slipstream.aio import AsyncEngine
from slipstream.core.types import Array, SamplingParams, Span
from slipstream.engine import Engine
from slipstream.errors import EngineFailure, InputError, Overload, TimeLimit
from slipstream.generation import Chunk, Generation, Request, Result
from slipstream.models.toy import ToyModel, ToyTokenizer
from slipstream.worker import Silent
from test_async import TABLE, Gated, N, first_chunk, run, until


def opened(model: ToyModel, **settings: object) -> AsyncEngine:
    return AsyncEngine(lambda: Engine(model, ToyTokenizer([bytes([97 + i]) for i in range(N)], (7,))), **settings)  # type: ignore[arg-type]


def request(*prompt: int, n: int = 5, **more: object) -> Request:
    return Request(list(prompt), max_tokens=n, ignore_end=True, **more)  # type: ignore[arg-type]


async def choices(engine: AsyncEngine, requests: Sequence[Request]) -> list[Result]:
    results: dict[int, Result] = {}
    async for event in engine.run(requests):
        if event.chunk is None:
            results[event.index] = event.generation.result()
    return [results[i] for i in range(len(requests))]


class Diary(Silent):
    """Writes down the prompts in the order in which their choices got a slot, were over, or failed."""

    def __init__(self) -> None:
        self.started_: list[int] = []
        self.finished_: list[tuple[int, float]] = []
        self.failed_: list[BaseException] = []
        self.stepped_ = 0

    def started(self, generation: Generation, waited_s: float) -> None:
        assert waited_s >= 0
        self.started_.append(generation.sequence.tokens[0])

    def stepped(self, chunks: Mapping[Generation, Chunk], seconds: float) -> None:
        assert seconds >= 0
        self.stepped_ += 1

    def finished(self, generation: Generation, seconds: float) -> None:
        self.finished_.append((generation.sequence.tokens[0], seconds))

    def failed(self, error: BaseException) -> None:
        self.failed_.append(error)


def test_choices_of_one_request_come_back_by_their_index() -> None:
    async def main() -> None:
        engine = opened(ToyModel(TABLE, N, n_slots=2))
        params = [SamplingParams(temperature=1.0, seed=i) for i in range(5)]
        together = await choices(engine, [request(1, 2, sampling=p) for p in params])
        alone = [(await choices(engine, [request(1, 2, sampling=p)]))[0] for p in params]
        assert [r.ids for r in together] == [r.ids for r in alone] and len({r.ids for r in together}) > 1
        await engine.close()

    run(main())


def test_many_choices_do_not_starve_a_request_that_came_later() -> None:
    async def main() -> None:
        model, diary = Gated(n_slots=1), Diary()
        engine = opened(model, watch=diary)
        model.gate.clear()
        tasks = [asyncio.create_task(choices(engine, [request(1)]))]
        await until(model.begun.is_set)
        tasks.append(asyncio.create_task(choices(engine, [request(2)] * 4)))
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(choices(engine, [request(3)])))
        tasks.append(asyncio.create_task(choices(engine, [request(4)])))
        await asyncio.sleep(0.01)
        model.gate.set()
        await asyncio.gather(*tasks)
        assert diary.started_ == [1, 2, 3, 4, 2, 2, 2]
        assert [who for who, _ in diary.finished_] == diary.started_ and diary.stepped_ > 0 and not diary.failed_
        await engine.close()

    run(main())


def test_more_than_may_wait_are_refused_and_room_comes_back() -> None:
    async def main() -> None:
        model, diary = Gated(n_slots=2), Diary()
        engine = opened(model, max_waiting=1, watch=diary)
        model.gate.clear()
        tasks = [asyncio.create_task(choices(engine, [request(i)])) for i in range(3)]
        await until(lambda: engine.state.active == 2 and engine.state.waiting == 1)
        with pytest.raises(Overload, match="1 requests wait") as refused:
            await choices(engine, [request(4)])
        assert 1 <= refused.value.retry_after <= 60 and diary.failed_ == [refused.value]
        with pytest.raises(Overload):
            await choices(engine, [request(5)] * 4)
        model.gate.set()
        await asyncio.gather(*tasks)
        await until(lambda: engine.state.active == engine.state.waiting == 0)
        assert len(await choices(engine, [request(5)] * 3)) == 3  # two slots, and one that waits
        with pytest.raises(Overload):
            await choices(engine, [request(5)] * 4)
        await engine.close()

    run(main())


def test_refused_and_cancelled_requests_hold_no_place() -> None:
    async def main() -> None:
        model = Gated(n_slots=1)
        engine = opened(model, max_waiting=2)
        for _ in range(5):
            with pytest.raises(InputError):
                await choices(engine, [request(1, verify="exact"), Request([N])])
        model.gate.clear()
        tasks = [asyncio.create_task(choices(engine, [request(i, n=300)])) for i in range(3)]
        await until(lambda: engine.state.waiting == 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        model.gate.set()
        await until(lambda: engine.state.active == engine.state.waiting == 0)
        assert len(await choices(engine, [request(5)] * 3)) == 3
        await engine.close()

    run(main())


def test_a_request_over_its_time_ends_whether_it_runs_or_waits() -> None:
    async def main() -> None:
        model, diary = Gated(n_slots=1), Diary()
        engine = opened(model, max_seconds=0.05, watch=diary)
        model.gate.clear()
        tasks = [asyncio.create_task(choices(engine, [request(i, n=400)])) for i in range(2)]
        await until(model.begun.is_set)
        await asyncio.sleep(0.06)
        model.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(a, TimeLimit) for a in answers)
        await until(lambda: engine.state.active == engine.state.waiting == 0)
        assert [who for who, _ in diary.finished_] == [0] and len(diary.failed_) == 2
        await engine.close()

    run(main())


class Crash(BaseException):
    """What no request can be blamed for."""


def test_a_crash_of_the_thread_answers_everybody_and_says_so() -> None:
    class Crashes(Gated):
        def forward(self, spans: Sequence[Span]) -> list[Array]:
            super().forward(spans)
            raise Crash("out of order")

    async def main() -> None:
        model, diary = Crashes(n_slots=1), Diary()
        engine = opened(model, watch=diary)
        model.gate.clear()
        tasks = [asyncio.create_task(choices(engine, [request(i)])) for i in range(3)]
        await until(model.begun.is_set)
        calls = asyncio.create_task(engine.call(lambda e: e.name))
        await asyncio.sleep(0.01)
        model.gate.set()
        answers = await asyncio.gather(*tasks, calls, return_exceptions=True)
        assert all(isinstance(a, EngineFailure) and "out of order" in str(a) for a in answers)
        await until(lambda: engine.state.status == "crashed")
        assert "Crash: out of order" in engine.state.reason and len(diary.failed_) == 3
        with pytest.raises(EngineFailure, match="out of order"):
            await choices(engine, [request(1)])
        with pytest.raises(EngineFailure, match="out of order"):
            await engine.call(lambda e: e.name)
        await engine.close()

    run(main())


def test_a_hang_can_be_given_up_and_the_thread_goes_on_when_it_comes_back() -> None:
    async def main() -> None:
        model = Gated(n_slots=1)
        engine = opened(model)
        assert engine.state.busy_s == 0
        model.gate.clear()
        tasks = [asyncio.create_task(choices(engine, [request(i, n=400)])) for i in range(3)]
        await until(model.begun.is_set)
        await until(lambda: engine.state.busy_s > 0.02)
        engine.give_up("a step takes for ever")
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(a, EngineFailure) and "for ever" in str(a) for a in answers)
        model.gate.set()
        await until(lambda: engine.state.active == engine.state.waiting == 0)
        assert len((await choices(engine, [request(1)]))[0].ids) == 5
        assert sum(model.forwards) < 30  # the three were not run on
        await engine.close()
        assert engine.state.status == "closed"

    run(main())


def test_a_call_runs_in_the_owning_thread_between_steps_and_its_error_is_the_caller_s() -> None:
    async def main() -> None:
        model = Gated(n_slots=1)
        engine = opened(model)
        stream = engine.stream([1, 2], max_tokens=400, ignore_end=True)
        await first_chunk(stream)
        owner = await engine.call(lambda e: threading.get_ident())
        assert owner == engine._thread.ident
        assert await engine.call(lambda e: e.encode_chat) is not None

        def fail(e: Engine) -> Callable[[], None]:
            raise InputError("not like this", "but like that")

        with pytest.raises(InputError, match="not like this"):
            await engine.call(fail)
        await stream.aclose()  # type: ignore[attr-defined]
        await until(lambda: engine.state.active == 0)
        await engine.close()

    run(main())
