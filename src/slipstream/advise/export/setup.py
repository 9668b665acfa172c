"""What is to run elsewhere, what comes out, and the notes that several engines share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from slipstream.advise.plan import Plan
from slipstream.drafting import Drafting
from slipstream.errors import InputError
from slipstream.hub import cache_dir, resolve

UNMEASURED = 4  # tokens to draft where an engine must be told and nothing was measured; as --policy fixed has it


@dataclass(frozen=True)
class Setup:
    """Files of target and draft model (None: none), drafters that need no model, and how many tokens to draft.

    `length` None: not measured; 0: a fixed length would not pay by the measured prices.
    """

    target: Path
    names: tuple[str, ...] = ()
    draft: Path | None = None
    length: int | None = None
    threads: int = 0
    verify: str = "exact"
    off: bool = False  # by the plan's verdict

    @classmethod
    def of(cls, plan: Plan) -> Setup:
        """Raises what `resolve` does for a model that is not here."""
        named = cls.named(plan.target.model, plan.draft)
        names = (*named.names, *(["corpus"] if plan.corpus else []))
        length = plan.draft_length if plan.k is None else plan.k
        return replace(
            named, names=names, length=length, threads=plan.threads, verify=plan.verify, off=plan.off
        )  # fmt: skip

    @classmethod
    def named(cls, model: str, draft: str) -> Setup:
        """From what -m and --draft take. Nothing is fetched. Raises InputError as `resolve` and `Drafting.of` do."""
        drafting = Drafting.of(draft)
        small = resolve(drafting.model, fetch=False).absolute() if drafting.model else None
        return cls(resolve(model, fetch=False).absolute(), drafting.names, small)


@dataclass(frozen=True)
class Export:
    """`text` is a line for a shell, which is `argv` quoted, or a Python program; `notes` say what it lacks."""

    to: str
    kind: Literal["command", "program"]
    text: str
    notes: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "notes": list(self.notes), "argv": list(self.argv)}


@dataclass(frozen=True)
class Ways:
    """What is left of a draft in an engine: guesses from the text's own past, a draft model, both, or neither."""

    lookup: bool
    draft: Path | None
    length: int
    notes: tuple[str, ...]

    @property
    def any(self) -> bool:
        return self.lookup or self.draft is not None


def ways(
    setup: Setup,
    engine: str,
    lookup: str = "",
    model: bool = True,
    both: bool = False,
    fixed: bool = True,
    threads: bool = False,
) -> Ways:
    """`lookup`: the engine's word for guesses from the text so far ("": it has none); `model`: it takes a GGUF file as
    draft model; `both`: it does both at a time; `fixed`: it is told how many tokens to draft; `threads`: and how many
    threads to use.

    Raises InputError when the setup drafts and nothing of it would be left.
    """
    draft = setup.draft if model else None
    kept = bool(lookup) and "suffix" in setup.names and (both or draft is None)
    lost = [name for name in setup.names if not (name == "suffix" and kept)]
    if setup.draft and not draft:
        lost.append(setup.draft.name)
    if lost and not kept and draft is None:
        has = [f"{lookup} (for suffix)"] * bool(lookup) + ["draft models"] * model
        raise InputError(
            f"{engine} can do nothing with {' or '.join(lost)}, so no drafting would be left",
            f"it has {' and '.join(has)}: export that with -m MODEL --draft DRAFT, or stay with `slipstream run`",
        )
    notes = [_off(engine)] if setup.off else []
    for name in lost:
        why = "drafts in one way at a time" if name == "suffix" and lookup else "can do nothing with it"
        notes.append(f"{name} is left out: {engine} {why}")
    if kept and lookup != "suffix":
        notes.append(f"suffix becomes {lookup}, the nearest that {engine} has")
    if draft is not None and cache_dir().absolute() / "tuned" in draft.parents:
        notes.append(f"{draft.name} was made on this machine: on another one, take the file along")
    if setup.verify not in ("exact", "block") or (setup.verify == "block" and engine != "vLLM"):
        notes.append(f"--verify {setup.verify} is left out: {engine} verifies in its own way")
    if kept or draft is not None:
        notes.append(_length(setup, engine, fixed))
    if setup.threads and not threads:
        notes.append(f"{setup.threads} threads are left out: {engine} sets their number elsewhere, or itself")
    return Ways(kept, draft, setup.length or (UNMEASURED if setup.length is None else 1), tuple(notes))


def _off(engine: str) -> str:
    return f"the plan's verdict is that drafting does not pay, so this is plain decoding in {engine}"


def _length(setup: Setup, engine: str, fixed: bool) -> str:
    always = f"as set here, {engine} does not weigh each step by its price: it drafts whether that pays or not"
    if not fixed:
        return f"{always}, and chooses the draft length itself"
    if setup.length is None:
        return f"{always}; nothing was measured, so it drafts {UNMEASURED} tokens at a time"
    if setup.length == 0:
        return f"{always}; by this machine's prices no fixed draft length pays: measure before you use this"
    return f"{always}; {setup.length} tokens are the best fixed length by measured acceptance and this machine's prices"


def command(to: str, argv: Sequence[str], notes: Sequence[str]) -> Export:
    return Export(to, "command", shlex.join(argv) + "\n", tuple(notes), tuple(argv))


def program(to: str, text: str, notes: Sequence[str]) -> Export:
    return Export(to, "program", text, tuple(notes))


# How an exported program gets its prompt.
READ_PROMPT = 'prompt = " ".join(sys.argv[1:]) or sys.stdin.read()'
