"""The one thread that owns the models: it reads its inbox, gives waiting requests free slots, and makes steps."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.engine import Engine
from slipstream.errors import EngineFailure, TimeLimit
from slipstream.generation import Chunk, Generation, Request

log = logging.getLogger("slipstream")
_USUAL = 0.1  # how much one request moves the usual seconds of one


@dataclass(frozen=True)
class Event:
    """Something new of one choice of a request; `chunk` None: that choice is over."""

    index: int
    generation: Generation
    chunk: Chunk | None


class Outlet(Protocol):
    """Where events of jobs go, from any thread; jobs of one asker share it, so that one call may serve them all."""

    def deliver(self, parcels: Sequence[tuple[Job, Event | BaseException]]) -> None: ...


@dataclass(eq=False)
class Job:
    """A request's choices. Its `outlet` takes events, or the error that ends all of them.

    `arrived` and `deadline` are times of time.monotonic().
    """

    requests: Sequence[Request]
    outlet: Outlet
    arrived: float
    deadline: float | None = None
    next: int = 0  # the choice that gets a slot next
    running: dict[Generation, int] = field(default_factory=dict)
    over: bool = False  # failed or cancelled: nobody listens any more

    @property
    def waiting(self) -> int:
        return 0 if self.over else len(self.requests) - self.next

    @property
    def left(self) -> int:
        return self.waiting + len(self.running)


@dataclass(frozen=True)
class State:
    """`status`: ok, crashed or closed; `busy_s`: seconds since the step or call that runs now began, 0 when none."""

    status: str
    reason: str
    slots: int
    active: int
    waiting: int
    busy_s: float
    usual_s: float  # of a request, of late


class Watch(Protocol):
    """Is told what happens, in the thread that owns the models. Must be quick, and must not raise."""

    def started(self, generation: Generation, waited_s: float) -> None:
        """A choice has got a slot."""
        ...

    def stepped(self, chunks: Mapping[Generation, Chunk], seconds: float) -> None:
        """A step for all that run took so long; what it gave each (no tokens while a prompt is read)."""
        ...

    def finished(self, generation: Generation, seconds: float) -> None:
        """A choice is over, for whatever reason, after so many seconds since its request came."""
        ...

    def failed(self, error: BaseException) -> None:
        """A request was refused or ended with this error. May come from any thread."""
        ...


class Silent:
    """The Watch that nobody looks at."""

    def started(self, generation: Generation, waited_s: float) -> None: ...
    def stepped(self, chunks: Mapping[Generation, Chunk], seconds: float) -> None: ...
    def finished(self, generation: Generation, seconds: float) -> None: ...
    def failed(self, error: BaseException) -> None: ...


class Worker:
    """`post`, `join`, `give_up`, `fail` and `state` are for any thread; the rest is the owning thread's."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self._engine, self._watch = engine, watch
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()  # all that are not over, those in the inbox included
        self._queue: deque[Job] = deque()
        self._running: dict[Generation, Job] = {}
        self._busy_since: float | None = None
        self._usual_s = 1.0
        self.ended = False
        self.crash = ""

    # -- any thread ------------------------------------------------------------------------------------------------

    def post(self, what: str, content: Any) -> None:
        self._inbox.put((what, content))

    def join(self, job: Job, max_waiting: int | None) -> bool:
        """Count the job in, unless more choices than `max_waiting` would have to wait."""
        with self._lock:
            room = None if max_waiting is None else max_waiting + self._engine.model.caps.n_slots
            if room is not None and sum(j.left for j in self._jobs) + job.left > room:
                return False
            self._jobs.add(job)
            return True

    def fail(self, job: Job, error: BaseException) -> None:
        """End a job with an error, once."""
        with self._lock:
            over, job.over = job.over, True
            self._jobs.discard(job)
        if not over:
            self._watch.failed(error)
            job.outlet.deliver([(job, error)])

    def give_up(self, why: str) -> None:
        for job in list(self._jobs):
            self.fail(job, EngineFailure(why, "see the server's log; the request may be tried again"))

    @property
    def state(self) -> State:
        with self._lock:
            waiting = sum(j.waiting for j in self._jobs)
        since, status = self._busy_since, "crashed" if self.crash else "closed" if self.ended else "ok"
        busy = 0.0 if since is None else time.monotonic() - since
        slots = self._engine.model.caps.n_slots
        return State(status, self.crash, slots, len(self._running), waiting, busy, self._usual_s)

    # -- the owning thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until it is closed, or something fails that no request can be blamed for."""
        try:
            while self._read():
                self._drop()
                self._admit()
                if self._running:
                    self._step()
        except BaseException as e:
            self.crash = f"{type(e).__name__}: {e}"
            log.exception("the thread that owns the models has crashed")
        finally:
            self.ended = True
            self._turn_away()

    def _turn_away(self) -> None:
        """Nobody waits for ever: every request that runs, waits or is still unread gets an error."""
        error = EngineFailure("the engine was closed")
        if self.crash:
            error = EngineFailure(f"the models' thread has crashed: {self.crash}", "start the server again")
        while not self._inbox.empty():
            what, content = self._inbox.get()
            if what == "call":
                content[1](None, error)
        for job in list(self._jobs):
            self.fail(job, error)

    def _read(self) -> bool:
        """Take messages; blocks only when there is nothing to do. False: close."""
        while True:
            self._busy_since = None
            try:
                what, content = self._inbox.get(block=not (self._running or self._queue))
            except queue.Empty:
                return True
            if what == "close":
                return False
            if what == "submit":
                self._queue.append(content)
            elif what == "cancel":
                with self._lock:
                    content.over = True
                    self._jobs.discard(content)
                self._drop()
            else:
                self._call(*content)

    def _call(self, function: Callable[[Engine], Any], settle: Callable[[Any, BaseException | None], None]) -> None:
        self._busy_since = time.monotonic()
        try:
            settle(function(self._engine), None)
        except Exception as e:
            settle(None, e)

    def _drop(self) -> None:
        """Free what belongs to jobs that are over or have run out of time."""
        now = time.monotonic()
        with self._lock:  # others join at this very moment
            late = [j for j in self._jobs if j.deadline is not None and j.deadline < now]
        for job in late:
            why = "" if job.running else ", while it still waited for a slot"
            self.fail(job, TimeLimit(f"the request was ended after {now - job.arrived:.0f} s{why}", "ask for less"))
        for generation in [g for g, job in self._running.items() if job.over]:
            self._engine.cancel(generation)
            self._end(generation)
        if any(job.over for job in self._queue):
            self._queue = deque(job for job in self._queue if not job.over)

    def _admit(self) -> None:
        """Free slots go round: a job with several choices gets one of them, then stands behind the others."""
        while self._queue and len(self._running) < self._engine.model.caps.n_slots:
            job = self._queue.popleft()
            if job.over:
                continue
            self._busy_since = time.monotonic()
            try:
                generation = self._engine.submit(job.requests[job.next])
            except Exception as e:
                self.fail(job, e)
                self._drop()
                continue
            with self._lock:
                job.running[generation] = job.next
                job.next += 1
            self._running[generation] = job
            if job.waiting:
                self._queue.append(job)
            self._watch.started(generation, time.monotonic() - job.arrived)
            if generation.done:
                self._end(generation)

    def _step(self) -> None:
        self._busy_since = begun = time.monotonic()
        try:
            chunks = self._engine.step()
        except Exception as e:
            log.exception("a step failed: every request that ran is ended")
            for generation, job in list(self._running.items()):
                self.fail(job, e)
                with suppress(Exception):  # where the engine has not given it up itself
                    self._engine.cancel(generation)
                self._end(generation)
            return
        self._watch.stepped(chunks, time.monotonic() - begun)
        parcels: list[tuple[Job, Event]] = []
        for generation, chunk in chunks.items():
            job = self._running[generation]
            parcels.append((job, Event(job.running[generation], generation, chunk)))
            if generation.done:
                parcels.append((job, self._over(generation)))
        self._deliver(parcels)

    def _end(self, generation: Generation) -> None:
        job = self._running[generation]
        self._deliver([(job, self._over(generation))])

    def _deliver(self, parcels: Sequence[tuple[Job, Event]]) -> None:
        """One call for all that an asker gets: each wakes its thread, which then wants the interpreter's lock."""
        sorted_: dict[Outlet, list[tuple[Job, Event | BaseException]]] = {}
        for job, event in parcels:
            if not job.over:
                sorted_.setdefault(job.outlet, []).append((job, event))
        for outlet, own in sorted_.items():
            outlet.deliver(own)

    def _over(self, generation: Generation) -> Event:
        """Its job may get a slot for another choice; what its asker is told."""
        job = self._running.pop(generation)
        seconds = time.monotonic() - job.arrived
        self._usual_s += _USUAL * (seconds - self._usual_s)
        with self._lock:
            index = job.running.pop(generation)
            if not job.left:
                self._jobs.discard(job)
        self._watch.finished(generation, seconds)
        return Event(index, generation, None)
