"""The plan: what an advice decided, as a TOML file that `run --plan` and `export --plan` take."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.advise.advice import ALL, Advice, Candidate, Decision, ModelFacts, Prices, Speed, Verdict
from slipstream.core.cost import Curve
from slipstream.errors import InputError, SlipstreamError, UnknownName
from slipstream.files import write_whole
from slipstream.hub import cache, resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT = 1
HEAD = """\
# A plan by Slipstream: how to decode with this model{how}.
# Use it:         slipstream run --plan {name} "…"        (chat and bench take --plan too)
# Elsewhere:      slipstream export --plan {name} --to llama-server
# Make it anew:   slipstream advise, when the model, the machine or the work has changed
"""
_AGAIN = "make it anew with `slipstream advise`"
_DEPTH = 256  # tokens of past at which a fixed draft length is chosen


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Part):
    """`model` is what -m or --draft takes; `file` is the file's name alone; `size` is in bytes."""

    model: str
    file: str
    size: int
    sha256: str

    def doubt(self, ref: str) -> str:
        """Why the model that `ref` names is not the one that was measured; "" when nothing speaks against it.

        Name and size are compared, and the checksum where it is known already. A model that is not here yet raises no
        doubt: what opens it will say more.
        """
        try:
            path = resolve(ref, fetch=False)
        except SlipstreamError:
            return ""
        if path.name != self.file:
            return f"it was made for {self.file}, not {path.name}"
        if path.stat().st_size != self.size:
            return f"{path.name} had {self.size:,} bytes when it was made, and now has {path.stat().st_size:,}"
        known = cache.read_json(cache.beside(path, ".verified.json")) if cache.was_verified(path) else None
        if isinstance(known, dict) and known.get("sha256") != self.sha256:
            return f"{path.name} has other contents than when it was made"
        return ""


class Kind(_Part):
    """The verdict on one kind of work, or on all of it. Figures as in an advice; `measured`: run, not predicted."""

    kind: str
    decision: Decision
    draft: str
    prompts: int
    measured: bool
    speedup: float
    interval: tuple[float, float] | None = None
    acceptance_rate: float | None = None
    break_even: float | None = None
    mean_acceptance_length: float | None = None

    @classmethod
    def of(cls, v: Verdict) -> Kind:
        figures = ("speedup", "interval", "acceptance_rate", "break_even", "mean_acceptance_length")
        return cls(
            kind=v.kind, decision=v.decision, draft=v.draft, prompts=v.prompts, measured=v.measured,
            **{name: getattr(v.speed, name) for name in figures},
        )  # fmt: skip


class Source(_Part):
    """The workload: where it came from, and how many prompts of each kind it holds."""

    source: str
    mix: dict[str, int] = Field(default_factory=dict)


class Origin(_Part):
    """When, where and with what the figures were made. `what_if`: changes to the prices; then they are predictions."""

    date: str = ""
    machine: str = ""
    command: str = ""
    interrupted: bool = False
    what_if: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)


class Plan(_Part):
    """`draft` is what --draft takes ("none": plain decoding); without a `k` each step is priced; `corpus` holds paths
    as they were given; `threads` 0 is one a core.

    `draft_length` is for engines that draft a fixed number of tokens, see `fixed_length`; 0: there it would not pay.
    """

    format: Literal[1] = 1
    decision: Decision
    draft: str
    verify: str = "exact"
    k: int | None = Field(default=None, ge=1)
    width: int = Field(default=1, ge=1)
    corpus: list[str] = Field(default_factory=list)
    threads: int = Field(default=0, ge=0)
    draft_length: int | None = Field(default=None, ge=0)
    target: File
    draft_model: File | None = None
    overall: Kind
    kinds: list[Kind] = Field(default_factory=list)
    workload: Source
    made: Origin = Field(default_factory=Origin)

    @classmethod
    def of(cls, advice: Advice) -> Plan:
        """What the advice chose."""
        way = next((c for c in advice.candidates if c.draft == advice.chosen), Candidate(draft="none"))
        model = way.model
        facts = advice.drafts.get(model) if model else None
        overall = Kind.of(advice.overall)
        return cls(
            decision=overall.decision,
            draft=way.value or way.draft,
            verify=way.verify,
            k=way.k,
            width=way.width,
            corpus=advice.settings.corpus if way.corpus else [],
            threads=advice.settings.threads,
            draft_length=_length(advice, model),
            target=_file(advice.target),
            draft_model=_file(facts) if facts else None,
            overall=overall,
            kinds=[Kind.of(v) for v in advice.verdicts if v.kind != ALL],
            workload=Source(source=advice.workload.source, mix=advice.workload.mix),
            made=Origin(
                date=str(advice.provenance.get("date", "")),
                machine=advice.machine,
                command=advice.reproduce,
                interrupted=advice.interrupted,
                what_if=advice.settings.what_if,
                versions=advice.provenance.get("versions", {}),
            ),
        )

    @property
    def predicted(self) -> bool:
        """Nothing was run: it was asked under other prices, or stopped before the runs."""
        return bool(self.made.what_if) or not self.overall.measured

    @property
    def off(self) -> bool:
        return self.draft == "none" and not self.corpus

    def options(self) -> dict[str, Any]:
        """What run, chat, bench and the server need, under the names of their options."""
        same = {name: getattr(self, name) for name in ("draft", "verify", "threads")}
        set_too = {
            "k": self.k,
            "width": self.width if self.width > 1 else None,
            "corpus": [Path(p) for p in self.corpus],
        }
        return {"model": self.target.model, **same, **{name: value for name, value in set_too.items() if value}}


def _file(facts: ModelFacts) -> File:
    return File(model=facts.name, file=facts.file, size=facts.size, sha256=facts.sha256)


def _length(advice: Advice, model: str | None) -> int | None:
    if advice.chosen == "none" or advice.overall.draft != advice.chosen:
        return None
    prices = advice.draft_prices.get(model) if model else None
    return fixed_length(advice.overall.speed, _curve(advice.target_prices), _curve(prices) if prices else None)


def _curve(prices: Prices) -> Curve:
    return Curve.of(prices.model_dump())


def fixed_length(speed: Speed, target: Curve, draft: Curve | None) -> int | None:
    """The draft length that would pay best if every step drafted that many tokens; 0: none would. None: unmeasured.

    A step of n tokens is expected to yield 1 + a(1) + … + a(n) for T(1 + n) + n·D(1) seconds, where a(i) is the share
    of drafts whose token at depth i was accepted. Drafts that went deep were the likely ones, so a deeper token never
    counts for more than a shallower one; depths that no draft reached are not considered.
    """
    shares = speed.by_position or ([] if speed.acceptance_rate is None else [speed.acceptance_rate])
    if not shares:
        return None
    token = draft.at(1, _DEPTH) if draft else 0.0
    best, most, expected, share = 0, 1 / target.at(1, _DEPTH), 1.0, 1.0
    for n, accepted in enumerate(shares, 1):
        share = min(share, accepted)
        expected += share
        rate = expected / (target.at(1 + n, _DEPTH) + n * token)
        if rate > most:
            best, most = n, rate
    return best


def text(plan: Plan, name: str = "plan.toml") -> str:
    """The file's text; `name` is how its comment calls it."""
    values = tomli_w.dumps(plan.model_dump(mode="json", exclude_none=True))
    how = ", as PREDICTED: it was not measured" if plan.predicted else " on this machine, as measured"
    return f"{HEAD.format(name=shlex.quote(name), how=how)}\n{values}"


def write(plan: Plan, path: Path) -> None:
    """A reader sees the old file or the new one. Raises InputError when it cannot be written."""
    write_whole(path, text(plan, path.name))


def read(path: Path) -> Plan:
    """Raises InputError for a file that cannot be read or is no plan, UnknownName for a key that plans do not have."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}", "`slipstream advise` makes plans") from e
    except ValueError as e:  # not UTF-8, or not TOML
        raise InputError(f"{path} is not TOML: {e}", _AGAIN) from e
    if values.get("format") != FORMAT:
        found = f"a plan of format {values['format']}" if "format" in values else "not a plan"
        raise InputError(f"{path} is {found}; this version reads format {FORMAT}", _AGAIN)
    try:
        return Plan.model_validate(values)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UnknownName(f"key in {path}", re.sub(r"\.\d+", "", where), _keys(Plan)) from None
        raise InputError(f"{path}: {where}: {first['msg']}", f"mend it, or {_AGAIN}") from e


def _keys(part: type[BaseModel], prefix: str = "") -> list[str]:
    """All keys of a plan, with those of its tables: "target.sha256"."""
    found = []
    for name, field in part.model_fields.items():
        found.append(prefix + name)
        for kind in get_args(field.annotation) or (field.annotation,):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found += _keys(kind, f"{prefix}{name}.")
    return found
