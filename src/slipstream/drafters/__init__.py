"""Drafters by name. A plug-in adds one with an entry point in the group `slipstream.drafters` (docs/drafters.md)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from slipstream.core.ports import Drafter
from slipstream.errors import CapabilityError, UnknownName

GROUP = "slipstream.drafters"


def names() -> list[str]:
    """Drafters that need no second model ("model" is opened by the engine, with its model)."""
    return sorted({"suffix", *(e.name for e in entry_points(group=GROUP))})


def create(name: str) -> Drafter:
    """The drafter of this name. Raises UnknownName, or CapabilityError when a plug-in fails to load."""
    if name == "suffix":
        from slipstream.drafters.suffix import SuffixDrafter

        return SuffixDrafter()
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                factory: Callable[[], Drafter] = entry.load()
                return factory()
            except Exception as e:
                raise CapabilityError(f"the drafter {name} ({entry.value}) fails to load: {e}", "see docs/drafters.md")
    raise UnknownName("drafter", name, [*names(), "none"])
