"""Drafters by name. A plug-in adds one with an entry point in the group `slipstream.drafters` (docs/drafters.md)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from slipstream.core.ports import Drafter
from slipstream.errors import CapabilityError, UnknownName

GROUP = "slipstream.drafters"
BUILT_IN = {
    "predicted": ("predicted", "PredictedDrafter"),
    "recycle": ("recycle", "RecycleDrafter"),
    "suffix": ("suffix", "SuffixDrafter"),
}


def names() -> list[str]:
    """Drafters that need no second model ("model" is opened by the engine, "corpus" made with its texts)."""
    return sorted({*BUILT_IN, *(e.name for e in entry_points(group=GROUP))})


def create(name: str, weighed: bool = False) -> Drafter:
    """The drafter of this name. `weighed`: a policy weighs every guess, so that unlikely ones may be offered too.

    Raises UnknownName, or CapabilityError when a plug-in fails to load.
    """
    if name == "suffix" and weighed:
        from slipstream.drafters.suffix import SuffixDrafter

        return SuffixDrafter(min_match=1)
    if name in BUILT_IN:
        module, kind = BUILT_IN[name]
        built_in: Callable[[], Drafter] = getattr(import_module(f"slipstream.drafters.{module}"), kind)
        return built_in()
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                factory: Callable[[], Drafter] = entry.load()
                return factory()
            except Exception as e:
                raise CapabilityError(f"the drafter {name} ({entry.value}) fails to load: {e}", "see docs/drafters.md")
    raise UnknownName("drafter", name, [*names(), "none"])
