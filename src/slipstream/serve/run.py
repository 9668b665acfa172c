"""A server's life: it binds, opens the models, answers, drains, and frees them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

from slipstream.aio import AsyncEngine
from slipstream.engine import Engine
from slipstream.errors import InputError, UsageError
from slipstream.serve import watchdog
from slipstream.serve.connection import protocol
from slipstream.serve.options import ServeOptions

log = logging.getLogger("slipstream")
_GRACE = 1.0  # seconds for the last words of requests that are ended
_CLOSE = 10.0  # seconds for the step that still runs, and for freeing the models
_KEEP_ALIVE = 75  # seconds; longer than clients keep an idle connection, so that they never write into a closed one
_MAX_HEAD = 64 * 1024  # bytes
_BACKLOG = 128  # connections that wait to be accepted


class Server:
    """`run` in the foreground, or `start` and `stop` around it in a thread of its own. One of them, once.

    `open_engine` is called in the thread that will own the models; `ready` with the address, when it answers.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        options: ServeOptions,
        ready: Callable[[str], None] | None = None,
        verbose: bool = False,
    ) -> None:
        self._open_engine, self._options, self._verbose = open_engine, options, verbose
        self._ready = ready or (lambda url: None)
        self._thread: threading.Thread | None = None
        self._up = threading.Event()
        self._url = ""
        self._error: BaseException | None = None
        self._http: _Http | None = None

    def run(self) -> int:
        """Until SIGINT or SIGTERM; requests may then come to their end, a second signal ends them at once.

        0: it ended as it was told to; 1: the models' thread had crashed, or hangs. Raises InputError for an address
        that cannot be had, and what opening the engine does.
        """
        o = self._options
        with bind(o) as listener:
            from slipstream.serve.app import create_app
            from slipstream.serve.metrics import Metrics

            metrics = Metrics()
            engine = AsyncEngine(self._open_engine, o.max_waiting, o.request_seconds, metrics)
            return asyncio.run(self._serve(create_app(engine, o, metrics), engine, listener))

    def start(self) -> str:
        """In a background thread; the base URL, once it accepts connections. Raises what `run` does."""
        self._thread = threading.Thread(target=self._run_in_thread, name="slipstream-server", daemon=True)
        self._thread.start()
        self._up.wait()
        if self._error is not None:
            raise self._error
        return self._url

    def stop(self) -> None:
        """Drain and end it, as a signal does; safe to call twice."""
        if self._thread is None or self._http is None:
            raise UsageError("the server was not started", "call start() first")
        self._http.stop()
        self._thread.join(self._options.drain_seconds + _GRACE + 2 * _CLOSE)

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as e:
            self._error = e
        finally:
            self._up.set()

    async def _serve(self, app: ASGIApp, engine: AsyncEngine, listener: socket.socket) -> int:
        def started() -> None:
            self._url = url(self._options.host, listener.getsockname()[1])
            self._ready(self._url)
            self._up.set()

        self._http = http = _Http(app, engine, self._options, self._verbose, started)
        watching = asyncio.create_task(watchdog.watch(engine, self._options.stall_seconds))
        freed = False
        try:
            _listen(listener, self._options)
            await http.serve([listener])
            crashed = engine.state.status == "crashed"
        finally:
            watching.cancel()
            freed = await _freed(engine, http.patience)
        if not freed and self._thread is None:
            log.error("a step still runs and is left behind")
            os._exit(0 if http.hurried else 1)  # a thread in native code cannot be ended otherwise
        return 1 if crashed else 0


class _Http(uvicorn.Server):
    """uvicorn, but the first signal drains, the second one ends, and both let the process leave with its own code."""

    def __init__(
        self, app: ASGIApp, engine: AsyncEngine, options: ServeOptions, verbose: bool, started: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol(options.body_seconds),
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="info" if verbose else "error",
                access_log=verbose,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                h11_max_incomplete_event_size=_MAX_HEAD,
            )
        )
        self._engine, self._drain, self._on_start = engine, options.drain_seconds, started
        self._loop = asyncio.get_running_loop()
        self._at_once = asyncio.Event()

    @property
    def hurried(self) -> bool:
        return self._at_once.is_set()

    @property
    def patience(self) -> float:
        """Seconds for the models' thread to end."""
        return _GRACE if self.hurried else _CLOSE

    def stop(self) -> None:
        """From any thread: the first call drains, the second ends what still runs."""
        with suppress(RuntimeError):  # the loop is closed: it has ended already
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self.should_exit:
            self._at_once.set()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, lambda *_: self.stop()) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connections; what runs has `drain_seconds`, then gets an error for its end."""
        closing = asyncio.create_task(super().shutdown(sockets))
        ending = asyncio.create_task(self._end_late())
        await asyncio.wait({closing, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({closing}, timeout=self.patience)
        for task in (closing, ending):
            task.cancel()

    async def _end_late(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._at_once.wait(), self._drain)
        self._engine.give_up("the server is shutting down")
        await asyncio.sleep(_GRACE)
        for connection in list(self.server_state.connections):  # clients that do not read, or have not asked yet
            connection.transport.abort()


def bind(options: ServeOptions) -> socket.socket:
    """A socket at the address, which does not listen yet. Raises InputError where it cannot be had."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise InputError(f"there is no host {options.host!r}", "--host 127.0.0.1 is this machine alone") from None
    family, kind, proto, _, address = min(found, key=lambda f: f[0] != socket.AF_INET)
    listener = socket.socket(family, kind, proto)
    try:
        if os.name == "posix":  # connections of an earlier server that linger do not count
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as e:
        listener.close()
        raise _refused(options, e) from None
    return listener


def _listen(listener: socket.socket, options: ServeOptions) -> None:
    try:
        listener.listen(_BACKLOG)
    except OSError as e:  # another program has bound it too, and was quicker
        raise _refused(options, e) from None


def _refused(options: ServeOptions, e: OSError) -> InputError:
    where = f"port {options.port}"
    if e.errno == errno.EADDRINUSE:
        return InputError(f"{where} is in use on {options.host}", "take another --port; 0 finds one that is free")
    if e.errno == errno.EACCES:
        return InputError(f"{where} may not be used", "take a --port above 1023; 0 finds one that is free")
    return InputError(f"cannot listen on {options.host}, {where}: {e.strerror}", "--host 127.0.0.1 is always there")


def url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that is bound to `host`."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _freed(engine: AsyncEngine, seconds: float) -> bool:
    """Close it; False: a step still runs, and it cannot be interrupted."""
    done, _ = await asyncio.wait({asyncio.create_task(engine.close())}, timeout=seconds)
    return bool(done)
