"""Who drafts: from what the user writes ("suffix,qwen2.5-coder-0.5b") to drafters, at most one of them a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.errors import InputError

if TYPE_CHECKING:  # the command line's help reads this file, and must be light
    from slipstream.core.ports import Drafter

    Draft = str | Drafter | Sequence[str | Drafter] | None

DEFAULT = "suffix"  # what costs nothing


@dataclass(frozen=True)
class Drafting:
    """`names`: drafters that need no model; `model`: a draft model, as written; `given`: drafters as objects."""

    names: tuple[str, ...] = ()
    model: str | None = None
    given: tuple[Drafter, ...] = ()

    @classmethod
    def of(cls, draft: Draft) -> Drafting:
        """From a comma-separated list, a Drafter, or a sequence of both; None and "none" are plain decoding.

        Raises InputError for two models, for "none" beside something else, and for a name given twice.
        """
        from slipstream import drafters

        parts = _parts(draft)
        words = [p for p in parts if isinstance(p, str)]
        if "none" in words and len(parts) > 1:
            raise InputError("--draft none stands alone", "leave out none, or the others")
        names = [w for w in words if w in drafters.names()]
        models = [w for w in words if w not in names and w != "none"]
        if len(models) > 1:
            raise InputError(
                f"two draft models: {models[0]} and {models[1]}",
                f"name one, beside drafters that need no model: {', '.join(drafters.names())}",
            )
        twice = next((w for w in names if names.count(w) > 1), None)
        if twice:
            raise InputError(f"the drafter {twice} is named twice", "name each once")
        return cls(tuple(names), models[0] if models else None, tuple(p for p in parts if not isinstance(p, str)))

    @property
    def any(self) -> bool:
        return bool(self.names or self.model or self.given)

    @property
    def label(self) -> str:
        return "+".join([*self.names, *(["model"] if self.model else []), *(d.name for d in self.given)]) or "none"

    def create(self, weighed: bool) -> list[Drafter]:
        """The drafters that need no model; `weighed`: for a policy that weighs every guess."""
        from slipstream import drafters

        return [drafters.create(name, weighed) for name in self.names] + list(self.given)


def _parts(draft: Draft) -> list[str | Drafter]:
    if draft is None:
        return []
    if isinstance(draft, str):
        if os.path.exists(draft):  # a file whose name has a comma
            return [draft]
        return [part for word in draft.split(",") if (part := word.strip())]
    return list(draft) if isinstance(draft, Sequence) else [draft]
