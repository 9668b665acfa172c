"""An engine for asyncio: one thread owns the models and runs the steps; requests join those that run."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.engine import Engine
from slipstream.errors import EngineFailure, Overload
from slipstream.generation import Chunk, Request, Result
from slipstream.worker import Event, Job, Silent, State, Watch, Worker

T = TypeVar("T")
_BATCH = 64  # events; the loop does something else before it takes more
_LONGEST_WAIT = 60  # seconds, of what Retry-After says


@dataclass(eq=False)
class _Asked(Job):
    """A job and where its asker, who runs in an event loop, looks for events."""

    box: asyncio.Queue[Event | BaseException] = field(default_factory=asyncio.Queue)

    async def news(self) -> tuple[list[Event], BaseException | None]:
        """All that has come, up to a batch; and the error that has ended it."""
        events: list[Event] = []
        item = await self.box.get()
        while not isinstance(item, BaseException):
            events.append(item)
            if self.box.empty() or len(events) == _BATCH:
                return events, None
            item = self.box.get_nowait()
        return events, item


class _Mail:
    """The Outlet to one event loop: one wake-up for all that has come since the last one.

    A loop reads away wake-ups until there are none: from a thread that sends one at every step it would never get on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._parcels: deque[tuple[Job, Event | BaseException]] = deque()
        self._woken = False

    def deliver(self, parcels: Sequence[tuple[Job, Event | BaseException]]) -> None:
        self._parcels.extend(parcels)  # before the look at `_woken`, as the loop resets it before it looks here
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is gone: nobody is waiting
                self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._woken = False
        while self._parcels:
            job, event = self._parcels.popleft()
            assert isinstance(job, _Asked)
            job.box.put_nowait(event)


class AsyncEngine:
    """`open_engine` is called in the owning thread, for example `lambda: Engine.open("smollm2-135m")`.

    Requests wait for a free slot in the order in which they came; one with several choices takes one slot at a time
    while others wait. `max_waiting` bounds the choices that wait (None: no bound), `max_seconds` the life of each
    request. `watch` is told what happens, in the owning thread.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        max_waiting: int | None = None,
        max_seconds: float | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._max_waiting, self._max_seconds = max_waiting, max_seconds
        self._watch = watch or Silent()
        self._mails: dict[asyncio.AbstractEventLoop, _Mail] = {}
        self._opened: queue.SimpleQueue[Worker | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(open_engine,), name="slipstream-engine", daemon=True)
        self._thread.start()
        opened = self._opened.get()
        if isinstance(opened, BaseException):
            raise opened
        self._worker = opened

    # -- requests -------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Any = None, **request: Any) -> Result:
        event: Event | None = None
        async for event in self.run([Request(prompt, **request)]):  # noqa: B007
            pass
        assert event is not None
        return event.generation.result()

    async def stream(self, prompt: Any = None, **request: Any) -> AsyncIterator[Chunk]:
        """Chunks as they come; leaving the loop early cancels the request and frees its slot."""
        async with aclosing(self.batches([Request(prompt, **request)])) as batches:
            async for batch in batches:
                for event in batch:
                    if event.chunk is not None:
                        yield event.chunk

    async def run(self, requests: Sequence[Request]) -> AsyncIterator[Event]:
        """The choices of one request, as their chunks come; leaving the loop early cancels all of them.

        Raises what `batches` does.
        """
        async with aclosing(self.batches(requests)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(self, requests: Sequence[Request]) -> AsyncGenerator[list[Event], None]:
        """As `run`, all that has come since the last time at once: who is late catches up with one write for many.

        Raises Overload when too many requests wait, EngineFailure, TimeLimit, and what Engine.submit and step do.
        """
        now = time.monotonic()
        deadline = None if self._max_seconds is None else now + self._max_seconds
        job = _Asked(list(requests), self._mail(), now, deadline)
        self._submit(job)
        left = len(job.requests)
        try:
            while left:
                events, error = await job.news()
                left -= sum(e.chunk is None for e in events)
                if events:
                    yield events
                if error is not None and left:
                    raise error
                if not job.box.empty():  # `get` would not let the loop do anything else
                    await asyncio.sleep(0)
        finally:
            self._worker.post("cancel", job)

    def _mail(self) -> _Mail:
        """One for each event loop that asks."""
        loop = asyncio.get_running_loop()
        if loop not in self._mails:
            self._mails = {known: mail for known, mail in self._mails.items() if not known.is_closed()}
            self._mails[loop] = _Mail(loop)
        return self._mails[loop]

    def _submit(self, job: Job) -> None:
        """Raises Overload, or EngineFailure where nobody would ever answer."""
        self._check_alive()
        n = len(job.requests)
        if not self._worker.join(job, self._max_waiting):
            message = f"{self.state.waiting} requests wait already, and {n} more would be too many"
            error = Overload(message, "try again later", self._retry_after())
            self._watch.failed(error)
            raise error
        self._worker.post("submit", job)
        if self._worker.ended:  # it may have come too late to be read
            self._worker.fail(job, self._gone())

    def _retry_after(self) -> int:
        state = self.state
        wait = state.usual_s * (state.waiting + 1) / max(state.slots, 1)
        return max(1, min(round(wait), _LONGEST_WAIT))

    async def call(self, function: Callable[[Engine], T]) -> T:
        """What `function` makes of the engine, in its own thread, between two steps."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            def in_loop() -> None:
                if not future.done():
                    future.set_exception(error) if error else future.set_result(value)

            with suppress(RuntimeError):
                loop.call_soon_threadsafe(in_loop)

        self._check_alive()
        self._worker.post("call", (function, settle))
        if self._worker.ended:
            settle(None, self._gone())
        return await future

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """How the owning thread is; may be asked from any thread."""
        return self._worker.state

    def give_up(self, why: str) -> None:
        """The owning thread hangs: every request gets an EngineFailure now. Should it come back, it goes on."""
        self._worker.give_up(why)

    async def close(self) -> None:
        """Every request that runs or waits gets an EngineFailure; the models are freed."""
        self._worker.post("close", None)
        await asyncio.to_thread(self._thread.join)

    def _check_alive(self) -> None:
        if not self._thread.is_alive() or self._worker.ended:
            raise self._gone()

    def _gone(self) -> BaseException:
        crash = self._worker.crash
        if crash:
            return EngineFailure(f"the models' thread has crashed: {crash}", "start it again")
        return EngineFailure("the engine was closed")

    def _run(self, open_engine: Callable[[], Engine]) -> None:
        try:
            engine = open_engine()
        except BaseException as e:
            self._opened.put(e)
            return
        with engine:
            worker = Worker(engine, self._watch)
            self._opened.put(worker)
            worker.run()
