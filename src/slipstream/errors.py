"""Every error that Slipstream raises on purpose.

SlipstreamError                 a message, and a hint that says what to do
├── InputError                  something the user gave cannot be used as it is
│   ├── UnknownName             a name that is not known; the nearest ones are listed
│   ├── ModelFileError          not a GGUF, cut short, or of a kind that cannot be read
│   ├── ChecksumError           the bytes are not the ones the catalog names
│   ├── PairError               target and draft do not share a vocabulary
│   └── ContextError            more context asked than the model has, or a prompt that does not fit
├── ResourceError               the machine lacks something
│   ├── MemoryShortage          a model and its caches would not fit
│   ├── DiskShortage            no room for a download
│   ├── FetchError              a file could not be had from any of its sources
│   ├── Overload                too many requests wait already; `retry_after` seconds may help
│   ├── TimeLimit               a request took longer than it may
│   └── EngineFailure           the thread that owns the models has failed, hangs, or was closed
├── CapabilityError             a model, build or drafter cannot do what was asked
│   ├── RollbackError           rejected tokens could not be taken back exactly
│   └── BuildError              the native library crashes or lacks something on this machine
└── UsageError                  the library was called in a way that it forbids (a bug in the caller)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SlipstreamError(Exception):
    """What happened, and what to do about it. The command line prints both and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(SlipstreamError): ...


class UnknownName(InputError):
    """A name that is not in a list of known names; the hint holds the nearest ones."""

    def __init__(self, what: str, name: str, known: Iterable[str], extra: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {what}: {name}", f"{hint} {extra}".strip())


class ModelFileError(InputError): ...


class ChecksumError(InputError): ...


class PairError(InputError): ...


class ContextError(InputError): ...


class ResourceError(SlipstreamError): ...


class MemoryShortage(ResourceError): ...


class DiskShortage(ResourceError): ...


class FetchError(ResourceError): ...


class Overload(ResourceError):
    """Too many requests wait. `retry_after`: seconds after which another try may be taken."""

    def __init__(self, message: str, hint: str = "", retry_after: int = 1) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class TimeLimit(ResourceError): ...


class EngineFailure(ResourceError): ...


class CapabilityError(SlipstreamError): ...


class RollbackError(CapabilityError): ...


class BuildError(CapabilityError): ...


class UsageError(SlipstreamError): ...
