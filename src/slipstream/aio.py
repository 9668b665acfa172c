"""An engine for asyncio: one thread owns the models and runs the steps; requests join those that run."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from slipstream.engine import Engine
from slipstream.errors import UsageError
from slipstream.generation import Chunk, Generation, Request, Result

_Deliver = Callable[[Chunk | None, Generation | None, BaseException | None], None]


class AsyncEngine:
    """`open_engine` is called in the owning thread, for example `lambda: Engine.open("smollm2-135m")`.

    Requests wait for a free slot in the order in which they came.
    """

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(open_engine,), name="slipstream-engine", daemon=True)
        self._closed = False
        self._thread.start()
        failure = self._opened.get()
        if failure is not None:
            raise failure

    async def generate(self, prompt: Any = None, **request: Any) -> Result:
        generation: Generation | None = None
        async for _, generation in self._chunks(Request(prompt, **request)):  # noqa: B007
            pass
        if generation is None:
            raise UsageError("the engine was closed")
        return generation.result()

    async def stream(self, prompt: Any = None, **request: Any) -> AsyncIterator[Chunk]:
        """Chunks as they come; leaving the loop early cancels the request and frees its slot."""
        async for chunk, _ in self._chunks(Request(prompt, **request)):
            if chunk is not None:
                yield chunk

    async def _chunks(self, request: Request) -> AsyncIterator[tuple[Chunk | None, Generation]]:
        loop = asyncio.get_running_loop()
        box: asyncio.Queue[tuple[Chunk | None, Generation | None, BaseException | None]] = asyncio.Queue()

        def deliver(chunk: Chunk | None, generation: Generation | None, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the asker's event loop is gone: nobody is waiting
                loop.call_soon_threadsafe(box.put_nowait, (chunk, generation, error))

        if not self._thread.is_alive():
            raise UsageError("the engine is closed")
        self._inbox.put(("submit", (request, deliver)))
        if self._closed:  # it may have come too late to be read
            deliver(None, None, UsageError("the engine was closed"))
        try:
            while True:
                chunk, generation, error = await box.get()
                if error is not None:
                    raise error
                assert generation is not None
                yield chunk, generation
                if generation.done and chunk is None:
                    return
        finally:
            self._inbox.put(("cancel", deliver))

    async def close(self) -> None:
        self._inbox.put(("close", None))
        await asyncio.to_thread(self._thread.join)

    # -- the owning thread ----------------------------------------------------------------------------------------

    def _run(self, open_engine: Callable[[], Engine]) -> None:
        try:
            engine = open_engine()
        except BaseException as e:
            self._opened.put(e)
            return
        self._opened.put(None)
        with engine:
            worker = _Worker(engine, self._inbox)
            try:
                worker.run()
            finally:
                self._closed = True
                worker.turn_away()


class _Worker:
    def __init__(self, engine: Engine, inbox: queue.SimpleQueue[tuple[str, Any]]) -> None:
        self.engine, self.inbox = engine, inbox
        self.waiting: list[tuple[Request, _Deliver]] = []
        self.running: dict[Generation, _Deliver] = {}

    def run(self) -> None:
        while self._read():
            self._admit()
            if self.running:
                self._step()

    def turn_away(self) -> None:
        """Nobody waits for ever: every request that runs, waits or is still unread gets an error."""
        while not self.inbox.empty():
            what, content = self.inbox.get()
            if what == "submit":
                self.waiting.append(content)
        closed = UsageError("the engine was closed")
        for deliver in [d for _, d in self.waiting] + list(self.running.values()):
            deliver(None, None, closed)

    def _read(self) -> bool:
        """Take messages; blocks only when there is nothing to do. False: close."""
        while True:
            try:
                what, content = self.inbox.get(block=not (self.running or self.waiting))
            except queue.Empty:
                return True
            if what == "close":
                return False
            if what == "submit":
                self.waiting.append(content)
            else:
                self._cancel(content)

    def _cancel(self, deliver: _Deliver) -> None:
        self.waiting = [w for w in self.waiting if w[1] is not deliver]
        for generation in [g for g, d in self.running.items() if d is deliver]:
            self.engine.cancel(generation)
            del self.running[generation]

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.engine.model.caps.n_slots:
            request, deliver = self.waiting.pop(0)
            try:
                generation = self.engine.submit(request)
            except BaseException as e:
                deliver(None, None, e)
                continue
            if generation.done:
                deliver(None, generation, None)
            else:
                self.running[generation] = deliver

    def _step(self) -> None:
        try:
            chunks = self.engine.step()
        except BaseException as e:
            for deliver in self.running.values():
                deliver(None, None, e)
            self.running = {}
            return
        for generation, chunk in chunks.items():
            deliver = self.running[generation]
            deliver(chunk, generation, None)
            if generation.done:
                deliver(None, generation, None)
                del self.running[generation]
