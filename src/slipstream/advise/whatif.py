"""Other prices than the measured ones: `--what-if` turns what was measured here into a question about another machine.

A change is read by `parse` and made by `apply`, in the order given. What comes out is a prediction in every case; each
change says in a sentence (`note`) what it took for granted. Where prices of one forward are changed but nothing is
known of longer contexts, what the context adds is changed by the same factor as T(1).

`bandwidth` and `compute` use the roofline model: a forward of n tokens reads all weights, which takes T(1), and
computes, and the two overlap. A slower memory hides more than before: max(T(1) / f, T(n)). A faster one leaves bare
what it hid, which cannot be measured; it is taken to be n times the slope of the curve's upper half. What lies above
both, such as the steps of a staircase, stays. `compute` is the same with the parts exchanged. The limits: where T(1) is
bound by computing or by starting kernels and not by reading weights, `bandwidth` promises too much; caches, which a
smaller model may fit into, are not modelled; drafters without a model take no time before and after.

`users` is so many requests that all draft alike, at the same step: T'(n) = T(users n), each with a context of its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipstream.advise import formula
from slipstream.core.cost import GRID, Curve
from slipstream.errors import InputError, UnknownName

EXAMPLES = {
    "T(n)": '--what-if "T(n)=40+2*n" (milliseconds), or --what-if "T(1)=40,T(4)=60,T(8)=90"',
    "D(n)": '--what-if "D(n)=5+n" (milliseconds), or --what-if "D(1)=5,D(2)=7"',
    "prices": "--what-if prices=other.json, from `slipstream cost -m MODEL --save other.json`",
    "draft-prices": "--what-if draft-prices=small.json, from `slipstream cost -m DRAFT --save small.json`",
    "users": "--what-if users=8",
    "bandwidth": "--what-if bandwidth=0.5 for half of this machine's",
    "compute": "--what-if compute=2 for twice as fast arithmetic",
}
MOST_USERS = 256
FACTORS = (0.01, 100.0)  # of bandwidth and arithmetic speed
_ROOFLINE = ", by the roofline model: a prediction, not a measurement."
_FARTHEST = 4096  # tokens: no forward is longer
_TABLE = re.compile(r"\s*([TD])\s*\(\s*(\d+)\s*\)\s*=\s*([^,=]+?)\s*(?:,|$)")
_CHANGE = re.compile(r"\s*([^=]*?)\s*=\s*(.*?)\s*", re.DOTALL)

Drafts = Mapping[str, Curve]


class Change:
    """One change of prices."""

    @property
    def sets_drafts(self) -> bool:
        """Whether it gives the draft models prices of their own."""
        return False

    def target(self, curve: Curve) -> Curve:
        return curve

    def draft(self, curve: Curve) -> Curve:
        return curve

    def both(self, target: Curve, drafts: Drafts) -> tuple[Curve, dict[str, Curve]]:
        """Raises InputError where the change gives no price."""
        return self.target(target), {name: self.draft(curve) for name, curve in drafts.items()}

    def note(self) -> str:
        """A plain English sentence for the report."""
        raise NotImplementedError


@dataclass(frozen=True)
class Written(Change):
    """Prices that were written down: `ms` gives milliseconds at a size; a table has its `sizes`, a formula none."""

    role: str  # T or D
    text: str
    ms: Callable[[int], float] = field(repr=False, compare=False)
    sizes: tuple[int, ...] = ()

    @property
    def sets_drafts(self) -> bool:
        return self.role == "D"

    def target(self, curve: Curve) -> Curve:
        return self._curve(curve) if self.role == "T" else curve

    def draft(self, curve: Curve) -> Curve:
        return self._curve(curve) if self.role == "D" else curve

    def _curve(self, old: Curve) -> Curve:
        sizes = self.sizes or tuple(sorted({*old.sizes, *GRID}))
        seconds = tuple(self._seconds(n) for n in sizes)
        factor = seconds[0] / old.seconds[0]
        return Curve(sizes, seconds, old.context, old.per_past * factor, old.per_past_token * factor)

    def _seconds(self, n: int) -> float:
        ms = self.ms(n)
        if not 0 < ms < 1e9:
            example = EXAMPLES[f"{self.role}(n)"]
            raise InputError(f"{self.text} makes {self.role}({n}) = {ms:g} milliseconds, which is no price", example)
        return ms / 1000

    def note(self) -> str:
        who = "The target's" if self.role == "T" else "The draft models'"
        return f"{who} forwards cost what was written, {self.text} in milliseconds, and not what was measured."


@dataclass(frozen=True)
class Saved(Change):
    """Prices that another machine saved. `scales`: no draft model's are known, so theirs follow the target's T(1)."""

    curve: Curve
    source: str  # the model's name, as the file has it, and the file's own name
    drafts: bool = False
    scales: bool = True

    @property
    def sets_drafts(self) -> bool:
        return self.drafts

    def both(self, target: Curve, drafts: Drafts) -> tuple[Curve, dict[str, Curve]]:
        if self.drafts:
            return target, dict.fromkeys(drafts, self.curve)
        context = max(self.curve.context, target.context)
        ratio = self.curve.at(1, context) / target.at(1, context) if self.scales else 1.0
        return self.curve, {name: scaled(curve, ratio) for name, curve in drafts.items()}

    def note(self) -> str:
        if self.drafts:
            return f"The draft models' prices are those of {self.source}, and not what was measured."
        tail = "; the draft models' are scaled by the same ratio of T(1), which is a guess" * self.scales
        return f"The target's prices are those of {self.source}, and not what was measured{tail}."


@dataclass(frozen=True)
class Users(Change):
    """So many requests at once, all drafting alike: each waits for a forward over the tokens of all."""

    n: int

    def target(self, curve: Curve) -> Curve:
        if self.n == 1:
            return curve
        users, (last, context) = self.n, (curve.sizes[-1], curve.context)
        # Every size up to the first one behind the last that was measured: what follows is that line itself.
        sizes = tuple(range(1, -(-last // users) + 2))
        others = (users - 1) * curve.per_past * context  # the pasts of the other requests are read too
        seconds = tuple(curve.at(users * n, context) + others for n in sizes)
        return Curve(sizes, seconds, context, users * curve.per_past, users * curve.per_past_token, curve.spread)

    draft = target

    def note(self) -> str:
        if self.n == 1:
            return "One request at a time, as measured."
        sizes = f"T(n) is the measured T({self.n}n), and a guess beyond the sizes that were measured"
        return f"{self.n} requests at once share each forward and draft alike: {sizes}."


@dataclass(frozen=True)
class Bandwidth(Change):
    factor: float

    def target(self, curve: Curve) -> Curve:
        f = self.factor
        if f == 1:
            return curve

        def seconds(n: int) -> float:
            whole, reading, computing = _parts(curve, n)
            rest = whole - max(reading, computing)
            return max(reading / f, whole if f < 1 else computing) + (rest if f > 1 else 0.0)

        made = _remade(curve, seconds, curve.seconds[0] / f)
        return replace(made, per_past=curve.per_past / f)

    draft = target

    def note(self) -> str:
        return (
            f"Memory is {self.factor:g} times as fast as here, by the roofline model: a prediction, not a measurement."
        )


@dataclass(frozen=True)
class Compute(Change):
    factor: float

    def target(self, curve: Curve) -> Curve:
        f = self.factor
        if f == 1:
            return curve

        def seconds(n: int) -> float:
            whole, reading, computing = _parts(curve, n)
            rest = whole - max(reading, computing)
            return max(reading, (whole if f > 1 else computing) / f) + (rest / f if f < 1 else 0.0)

        made = _remade(curve, seconds, curve.seconds[0] * f)
        return replace(made, per_past_token=curve.per_past_token / f)

    draft = target

    def note(self) -> str:
        return f"Arithmetic is {self.factor:g} times as fast as here{_ROOFLINE}"


def scaled(curve: Curve, factor: float) -> Curve:
    """All prices times a factor."""
    seconds = tuple(s * factor for s in curve.seconds)
    each = curve.per_past_token * factor
    return replace(curve, seconds=seconds, per_past=curve.per_past * factor, per_past_token=each)


def _parts(curve: Curve, n: int) -> tuple[float, float, float]:
    """Seconds of a forward of n tokens behind the measured context: as a whole, and what reading weights and computing
    take of it at the same time."""
    last = curve.sizes[-1]
    whole, end = curve.at(n, curve.context), curve.seconds[-1]
    half = next(m for m in curve.sizes if 2 * m >= last)
    slope = (end - curve.at(half, curve.context)) / (last - half) if half < last else end / last
    return whole, min(whole, curve.seconds[0]), min(whole, n * min(max(slope, 0.0), end / last))


def _remade(curve: Curve, seconds: Callable[[int], float], floor: float) -> Curve:
    """The curve with other seconds; beyond its end too, until the line there has left `floor` behind."""
    sizes = list(curve.sizes)
    while True:
        passed = curve.at(sizes[-1], curve.context) > floor
        if 2 * sizes[-1] > _FARTHEST:
            break
        sizes.append(2 * sizes[-1])
        if passed:
            break
    return replace(curve, sizes=tuple(sizes), seconds=tuple(map(seconds, sizes)))


def parse(text: str) -> Change:
    """One value of `--what-if`. Raises InputError, with an example, for what cannot be read; UnknownName for a keyword
    that is not known."""
    if re.fullmatch(r"\s*[TD]\s*\(\s*\d+\s*\)\s*=.*", text, re.DOTALL):
        return _table(text)
    parts = _CHANGE.fullmatch(text)
    if parts is None or not parts[2]:
        raise InputError(f"not a change of prices: {text or 'nothing'}", EXAMPLES.get(text.strip(), EXAMPLES["T(n)"]))
    key, value = re.sub(r"\s+", "", parts[1]), parts[2]
    if key not in EXAMPLES:
        raise UnknownName("what-if", key, EXAMPLES, f"example: {EXAMPLES['T(n)']}")
    if key in ("T(n)", "D(n)"):
        return _formula(key[0], value)
    if key in ("prices", "draft-prices"):
        return _saved(Path(value), key)
    if key == "users":
        if not value.isdecimal() or not 1 <= int(value) <= MOST_USERS:
            raise InputError(f"users is {value}, not a whole number from 1 to {MOST_USERS}", EXAMPLES[key])
        return Users(int(value))
    factor = _factor(key, value)
    return Bandwidth(factor) if key == "bandwidth" else Compute(factor)


def _factor(key: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not FACTORS[0] <= factor <= FACTORS[1]:
        raise InputError(f"{key} is {value}, not a number from {FACTORS[0]:g} to {FACTORS[1]:g}", EXAMPLES[key])
    return factor


def _formula(role: str, text: str) -> Written:
    try:
        made = Written(role, f"{role}(n) = {text}", formula.parse(text))
        for n in GRID:
            made._seconds(n)
    except InputError as e:
        raise InputError(e.message, f"example: {EXAMPLES[f'{role}(n)']}; {formula.HINT}") from None
    return made


def _table(text: str) -> Written:
    """T(1)=40,T(4)=60: straight lines between, and on along the last one."""
    role, at, found = text.strip()[0], 0, dict[int, float]()
    example = f"example: {EXAMPLES[f'{role}(n)']}"
    while at < len(text):
        part = _TABLE.match(text, at)
        try:
            if part is None or part[1] != role or int(part[2]) in found:
                raise ValueError
            found[int(part[2])] = float(part[3])
        except ValueError:
            raise InputError(f"not a price, or a second one of the same size: {text[at:].strip()}", example) from None
        at = part.end()
    if 1 not in found or len(found) < 2 or 0 in found or max(found) > _FARTHEST:
        raise InputError(f"a table has {role}(1) and at least one more size, up to {_FARTHEST}: {text}", example)
    made = Written(role, text.strip(), lambda n: found[n], tuple(sorted(found)))
    for n in found:
        made._seconds(n)
    return made


def _saved(path: Path, key: str) -> Saved:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        curve = Curve.of(value["curve"])
        if not all(map(math.isfinite, (curve.per_past, curve.per_past_token, curve.spread))):
            raise ValueError
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}", EXAMPLES[key]) from e
    except (ValueError, KeyError, TypeError, InputError):
        raise InputError(f"{path} holds no price list", EXAMPLES[key]) from None
    model = value.get("model")
    source = f"{model} in {path.name}" if isinstance(model, str) and model else path.name
    return Saved(curve, source, key == "draft-prices")


def settled(changes: Sequence[Change]) -> list[Change]:
    """The changes as they work together: a target's saved prices scale the draft models' only when nothing else is said
    of those."""
    told = any(c.sets_drafts for c in changes)
    return [replace(c, scales=False) if told and isinstance(c, Saved) else c for c in changes]


def check(changes: Sequence[Change], drafts: Collection[str]) -> None:
    """Raises InputError for prices of draft models where there is none: to be asked before anything is measured."""
    if not drafts and any(c.sets_drafts for c in changes):
        raise InputError("there is no draft model that D(n) or draft-prices could be the price of", "leave it out")


def notes(changes: Sequence[Change]) -> list[str]:
    """What the report says of each change, in order."""
    return [c.note() for c in settled(changes)]


def apply(changes: Sequence[Change], target: Curve, drafts: Drafts) -> tuple[Curve, dict[str, Curve]]:
    """The prices of target and draft models after all changes, one after the other.

    Raises InputError for a formula that gives no price at one of the sizes.
    """
    made = dict(drafts)
    for change in settled(changes):
        target, made = change.both(target, made)
    return target, made
