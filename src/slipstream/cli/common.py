"""What commands share: consoles, progress of downloads, opening an engine, and stopping on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

from slipstream.cli.options import EngineOptions
from slipstream.errors import InputError
from slipstream.files import write_whole as write_whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from slipstream.engine import Engine

BUSY = 0.25  # of the CPU
_PIPE_WIDTH = 160  # columns of a table that no terminal bounds


def console(stderr: bool = False) -> Console:
    """Data goes to stdout, all else to stderr. Colours only on a terminal, and never with NO_COLOR."""
    stream: TextIO = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, no_color=bool(os.environ.get("NO_COLOR")))


def coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(*parts: object) -> None:
    """A line for a person, on stderr."""
    print(*parts, file=sys.stderr, flush=True)


def warn_if_busy() -> None:
    """Timings mean little beside another program that computes, so say so before they start."""
    from slipstream.advise.provenance import busy

    share = busy()
    if share > BUSY:
        say(f"warning: other programs use {100 * share:.0f} % of this machine's CPU; speeds will be off")


def emit_json(value: Any) -> None:
    """The one JSON object, as the last line on stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


class Downloads:
    """A `Progress` for fetching models: a bar on a terminal, else a line for each thing that is fetched."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last = ""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        if not sys.stderr.isatty():
            if what != self._last:
                say(what)
            self._last = what
            return
        if self._bar is None:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                console=console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=what)

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def open_engine(options: EngineOptions, **more: Any) -> Engine:
    """The engine, with a progress bar when its models have to be fetched first."""
    settings = options.settings(**more)
    from slipstream.engine import Engine

    with Downloads() as progress:
        return Engine.open(options.model, options.draft, settings, progress=progress)


class Stoppable:
    """Within it, the first Ctrl-C only sets `hit`, so that what was done can be shown; the second one raises."""

    def __init__(self) -> None:
        self.hit = False

    def __call__(self) -> bool:
        return self.hit

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            raise KeyboardInterrupt
        self.hit = True

    def __enter__(self) -> Stoppable:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)


def check_writable(path: Path | None) -> None:
    """Raises InputError now, before long work, when a file could not be written afterwards."""
    if path is not None and (not os.access(path.parent, os.W_OK) or path.is_dir()):
        raise InputError(f"cannot write {path}", "choose a file in a folder that exists and can be written")
