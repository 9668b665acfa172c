"""Ways to draft that an advice compares: what --draft takes, and settings behind it ("suffix,D k=4 verify=block")."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.verify import verifier
from slipstream.drafting import Drafting
from slipstream.errors import InputError, SlipstreamError, UnknownName
from slipstream.hub import catalog, tuned

PLAIN = "none"
AUTO = "auto"
CORPUS = "corpus"  # a drafter that is made of the texts that --corpus names
SAMPLING = ("rejection", "block")  # verifiers whose guesses are drawn
_SETTING = re.compile(r"\s+([a-z]+)=(\S+)$")


@dataclass(frozen=True)
class Candidate:
    """`draft` is how the user writes it, settings included; `names` are drafters without a model, `model` is the draft
    model in it, if there is one. `k` None: every step is priced."""

    draft: str
    names: tuple[str, ...]
    model: str | None = None
    corpus: bool = False
    k: int | None = None
    width: int = 1
    verify: str = "exact"

    @classmethod
    def of(cls, text: str) -> Candidate:
        """Raises InputError and UnknownName as the options that it stands for do."""
        rest, found = text.strip(), dict[str, Any]()
        while match := _SETTING.search(rest):
            found[match[1]], rest = _value(match[1], match[2], text), rest[: match.start()]
        words = [w.strip() for w in rest.split(",")]
        drafting = Drafting.of(",".join(w for w in words if w != CORPUS) or PLAIN)
        made = cls(text.strip(), drafting.names, drafting.model, CORPUS in words, **found)
        verifier(made.verify, made.width)
        return made

    @property
    def value(self) -> str:
        """What --draft takes."""
        return ",".join([*self.names, *([self.model] if self.model else [])]) or PLAIN

    @property
    def drawn(self) -> bool:
        """Whether its verifier lets guesses be drawn, so that the text depends on them."""
        return self.verify in SAMPLING


def _value(name: str, value: str, text: str) -> int | str:
    known: dict[str, Callable[[str], int | str]] = {"k": int, "width": int, "verify": str}
    if name not in known:
        raise UnknownName("setting", name, known)
    try:
        found = known[name](value)
    except ValueError:
        raise InputError(f"{name}={value} is not a number", f"write {name}=4, in {text}") from None
    if isinstance(found, int) and found < 1:
        raise InputError(f"{name} is {found}", f"it must be 1 or more, in {text}")
    return found


def candidates(target: str, asked: str = AUTO, corpus: bool = False) -> list[Candidate]:
    """Those that were asked for, separated by ";", or all that could fit: without a model, with the texts of `corpus`,
    with each draft model that the catalogue pairs with the target, and with those that were tuned for it.

    Raises InputError for a corpus without texts.
    """
    if asked != AUTO:
        parts = [part.strip() for part in asked.split(";") if part.strip()]
        ways = [Candidate.of(part) for part in dict.fromkeys(parts) if part != PLAIN]
        if not corpus and any(way.corpus for way in ways):
            raise InputError("a corpus is asked for, but it has no texts", "name its files with --corpus")
        return ways
    found = ["suffix", "suffix,recycle", *(["suffix,corpus"] if corpus else [])]
    for model in draft_models(target):
        found += [f"suffix,{model}", model]
    return [Candidate.of(draft) for draft in found]


def draft_models(target: str) -> Sequence[str]:
    """Names of draft models for a target of the catalogue, tuned ones included; none for other files."""
    try:
        entry = catalog.builtin().get(target)
    except SlipstreamError:
        entry = None
    drafts = list(entry.drafts) if entry else []
    made = [m.name for m in tuned.every() if m.facts.get("target") == target]
    return [*drafts, *made]
