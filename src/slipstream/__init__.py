"""Slipstream: speculative decoding on your own machine. The text is the target's own; only the time changes.

>>> from slipstream import Engine
>>> with Engine.open("smollm2-135m", draft="suffix") as engine:      # doctest: +SKIP
...     print(engine.generate("Once upon a time", max_tokens=32).text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.aio import AsyncEngine as AsyncEngine
    from slipstream.core.policy import Fixed as Fixed
    from slipstream.core.policy import Off as Off
    from slipstream.core.types import Draft as Draft
    from slipstream.core.types import SamplingParams as SamplingParams
    from slipstream.engine import Engine as Engine
    from slipstream.errors import SlipstreamError as SlipstreamError
    from slipstream.generation import Chunk as Chunk
    from slipstream.generation import Request as Request
    from slipstream.generation import Result as Result

__version__ = "0.1.0"

_WHERE = {
    "AsyncEngine": "aio",
    "Chunk": "generation",
    "Draft": "core.types",
    "Engine": "engine",
    "Fixed": "core.policy",
    "Off": "core.policy",
    "Request": "generation",
    "Result": "generation",
    "SamplingParams": "core.types",
    "SlipstreamError": "errors",
}
__all__ = [*sorted(_WHERE), "__version__"]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `import slipstream` stays light."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"slipstream.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
