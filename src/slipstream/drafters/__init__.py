"""Drafters by name. A plug-in adds one with an entry point in the group `slipstream.drafters` (docs/drafters.md)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from slipstream.core.ports import Drafter
from slipstream.errors import CapabilityError, UnknownName

GROUP = "slipstream.drafters"
_BUILT_IN = {"suffix": "slipstream.drafters.suffix:SuffixDrafter"}


def names() -> list[str]:
    """Drafters that need no second model, built-in and plugged in ("model" is opened by the engine with its model)."""
    return sorted({*_BUILT_IN, *(e.name for e in entry_points(group=GROUP))} - {"model"})


def create(name: str) -> Drafter:
    """The drafter of this name. Raises UnknownName, or CapabilityError when a plug-in fails to load."""
    for entry in entry_points(group=GROUP):
        if entry.name == name and name != "model":
            try:
                factory: Callable[[], Drafter] = entry.load()
                return factory()
            except Exception as e:
                raise CapabilityError(f"the drafter {name} ({entry.value}) fails to load: {e}", "see docs/drafters.md")
    if name == "suffix":  # running from a source tree that is not installed
        from slipstream.drafters.suffix import SuffixDrafter

        return SuffixDrafter()
    raise UnknownName("drafter", name, [*names(), "none"])
