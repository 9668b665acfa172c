"""Every file of a target with every way to draft: speed, acceptance, memory, and what the file does to the text.

A draft model's precision changes only the time. The target's changes the text, so each row says both. The reference,
the given file with most bits a weight, answers the prompts greedily; all else is judged on these answers: the other
files by what they would have said (divergence.py), the ways to draft by rehearsal (rehearse.py) with each file's
prices. Rehearsing the reference's answers for a file that would say something else now and then takes it for granted
that its own answers are as easy to guess.

T(1) is measured in turn with the reference's, where memory holds both (scale.py); the shape of the curve is the price
list's. Speeds without drafts are so measured; with drafts they are predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.advise import tune
from slipstream.advise.divergence import Compared, Reference
from slipstream.advise.measure import Work
from slipstream.advise.played import Heard
from slipstream.advise.rehearse import Outcome, Script, listen, rehearse
from slipstream.advise.scale import CONTEXT, Scale
from slipstream.advise.variants import PLAIN, Variant, Way, reference_of
from slipstream.advise.whatif import scaled
from slipstream.core.cost import Curve
from slipstream.core.ports import Model
from slipstream.engine import Engine
from slipstream.errors import CapabilityError, InputError, PairError, SlipstreamError
from slipstream.models.gguf import GGUFHeader
from slipstream.models.memory import human
from slipstream.opening import Files, OpenOptions, context, curve_of, load_model, memory_plan
from slipstream.text import pairing, vocab

if TYPE_CHECKING:
    from slipstream.models.llamacpp.model import LlamaOptions

ROUNDS, TIMES = 7, 3  # a price is the middle one of three medians of seven forwards
Pair = tuple[str, str]  # labels of a target and a way
_NEVER = lambda: False  # noqa: E731


@dataclass(frozen=True)
class Weighed:
    """A target file. `in_turn`: its T(1) was measured beside the reference's; `texts` is None for the reference.

    `spread`: largest over least of the times that T(1) was taken from, 1 when they were all the same.
    """

    variant: Variant
    curve: Curve
    spread: float
    in_turn: bool
    texts: list[Compared] | None

    @property
    def plain_tps(self) -> float:
        return 1 / self.curve.at(1, CONTEXT)


class Rules:
    """What can be run at all, from headers alone: `skipped` gives a reason, `needed` the bytes of each other pair."""

    def __init__(self, targets: Sequence[Variant], ways: Sequence[Way], threads: int) -> None:
        self.reference, self.threads = reference_of(targets), threads
        self.skipped: dict[Pair, str] = {}
        self.needed: dict[Pair, int] = {}
        self._alone = {v.label: self._needs(v.header) for v in [*targets, *(w.model for w in ways if w.model)]}
        self._room = memory_plan(Files(self.reference.header, None, None), OpenOptions(threads=threads))[0].available
        for target in targets:
            other = _another(self.reference.header, target.header)
            for way in ways:
                reason = other or self._reason(target, way)
                if reason:
                    self.skipped[target.label, way.label] = reason

    def _needs(self, header: GGUFHeader) -> Mapping[str, int]:
        return memory_plan(Files(header, None, None), OpenOptions(threads=self.threads))[0].needed

    def _reason(self, target: Variant, way: Way) -> str:
        try:
            files = _files(target, way)
        except (PairError, CapabilityError) as e:
            return e.message
        plan = memory_plan(files, OpenOptions(threads=self.threads))[0]
        if not plan.fits:
            short = "; ".join(f"{human(n)} of {device} missing" for device, n in plan.short.items())
            return f"does not fit in memory: {short}"
        self.needed[target.label, way.label] = sum(plan.needed.values())
        return ""

    def beside_reference(self, other: Variant) -> bool:
        """Whether memory holds both."""
        a, b = self._alone[self.reference.label], self._alone[other.label]
        return all(a.get(d, 0) + b.get(d, 0) <= self._room.get(d, 0) for d in {*a, *b})


def _files(target: Variant, way: Way) -> Files:
    """Raises PairError and CapabilityError."""
    return Files.find(str(target.header.path), [*way.names, *([str(way.model.header.path)] if way.model else [])])


def _another(reference: GGUFHeader, other: GGUFHeader) -> str:
    """Why a file cannot be compared with the reference; empty if it can."""
    if other is reference:
        return ""
    for what in ("architecture", "n_layers", "n_embd", "n_vocab"):
        theirs, ours = getattr(other, what), getattr(reference, what)
        if theirs != ours:
            return f"is another model than the reference: {what} {theirs}, not {ours}"
    if context(other, 0) != context(reference, 0):
        return f"has another context than the reference: {context(other, 0)} tokens, not {context(reference, 0)}"
    try:
        pairing.pair(vocab.from_gguf(reference), vocab.from_gguf(other))
    except PairError as e:
        return f"is another model than the reference: {e.message}"
    return ""


class Matrix:
    """Measures in `run`, files that memory holds beside the reference first; what is known after an interruption stays.

    `folder` is for the reference's rows (divergence.space).
    """

    def __init__(
        self,
        targets: Sequence[Variant],
        ways: Sequence[Way],
        folder: Path,
        threads: int = 0,
        stopped: Callable[[], bool] = _NEVER,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.reference = reference_of(targets)
        self.targets = [self.reference, *(t for t in targets if t is not self.reference)]
        self.ways = [PLAIN, *ways]
        self.rules = Rules(self.targets, self.ways, threads)
        self.folder, self.threads, self.stopped, self.say = folder, threads, stopped, say
        self.scripts: list[Script] = []
        self.weighed: dict[str, Weighed] = {}
        self.heard: dict[str, tuple[Curve, list[Heard]]] = {}  # by the draft model's label
        self._scale: Scale | None = None
        self._rows: Reference | None = None

    @property
    def skipped(self) -> dict[Pair, str]:
        return self.rules.skipped

    def run(self, works: Sequence[Work], max_tokens: int) -> None:
        """Raises what Engine.open does for the reference, InputError when it says nothing."""
        drafts = list({w.model.label: w.model for w in self.ways if w.model and self._wanted(way=w)}.values())
        others = [t for t in self.targets[1:] if self._wanted(target=t)]
        with Engine.open(str(self.reference.header.path), "suffix", threads=self.threads) as engine:
            self._write(engine, works, max_tokens)
            if self.stopped():
                return
            self._scale = Scale(engine.model, [*self.scripts[0].prompt, *self.scripts[0].said])
            self._weigh(self.reference, engine.model)
            if others:
                self.say(f"{self.reference.label} reads its answers")
                self._rows = Reference(engine.model, self.scripts, self.folder / "rows", self.stopped)
            self._measure(*([v for v in group if self.rules.beside_reference(v)] for group in (drafts, others)))
        self._scale = None
        self._measure(*([v for v in group if not self.rules.beside_reference(v)] for group in (drafts, others)))

    def _wanted(self, target: Variant | None = None, way: Way | None = None) -> bool:
        """Some pair with it can be run."""
        targets, ways = [target] if target else self.targets, [way] if way else self.ways
        return any((t.label, w.label) not in self.skipped for t in targets for w in ways)

    def _write(self, engine: Engine, works: Sequence[Work], max_tokens: int) -> None:
        self.say(f"{self.reference.label} answers {len(works)} prompts")
        texts = tune.write(engine, works, max_tokens, self.stopped)
        self.scripts = list(texts)
        if not self.scripts and not self.stopped():
            raise InputError("the target says nothing to these prompts", "give others, or a larger --max-tokens")

    def _measure(self, drafts: Sequence[Variant], targets: Sequence[Variant]) -> None:
        for variant in (*drafts, *targets):
            if self.stopped():
                return
            self.say(f"{variant.label} reads them")
            try:
                with self._loaded(variant.header) as model:
                    (self._hear if variant in drafts else self._weigh)(variant, model)
            except SlipstreamError as e:  # one that cannot be loaded is no reason to lose the others
                self._give_up(variant, e.message)

    @contextmanager
    def _loaded(self, header: GGUFHeader) -> Iterator[Model]:
        model = load_model(header, self._options(header))
        try:
            yield model
        finally:
            model.close()

    def _options(self, header: GGUFHeader) -> LlamaOptions:
        from slipstream.models.llamacpp.model import LlamaOptions

        layers = memory_plan(Files(header, None, None), OpenOptions(threads=self.threads))[1]
        return LlamaOptions(n_ctx=context(header, 0), threads=self.threads, gpu_layers=layers)

    def _give_up(self, variant: Variant, why: str) -> None:
        self.say(f"warning: {variant.label} is left out: {why}")
        for target in self.targets:
            for way in self.ways:
                if variant in (target, way.model):
                    self.skipped.setdefault((target.label, way.label), why)

    def _price(self, model: Model, header: GGUFHeader, drafts: bool) -> tuple[Curve, float]:
        """A model's curve, and the spread of its T(1)."""
        curve = curve_of(model, header, self._options(header), drafts=drafts)
        if self._scale is None:
            return curve, curve.spread
        ones = sorted(self._scale.price(model, (1,), not drafts, ROUNDS)(1) for _ in range(TIMES))
        return scaled(curve, ones[TIMES // 2] / curve.at(1, CONTEXT)), ones[-1] / ones[0]

    def _weigh(self, variant: Variant, model: Model) -> None:
        """A target's prices and what it would have said."""
        curve, spread = self._price(model, variant.header, drafts=False)
        texts = None
        if variant is not self.reference and self._rows is not None and self._rows.complete:
            texts = self._rows.compare(model, self.stopped)
        if variant is self.reference or texts is not None:
            self.weighed[variant.label] = Weighed(variant, curve, spread, self._scale is not None, texts)

    def _hear(self, variant: Variant, model: Model) -> None:
        """A draft model's prices and what it would have guessed."""
        pair = pairing.pair(vocab.from_gguf(self.reference.header), vocab.from_gguf(variant.header))
        curve, _ = self._price(model, variant.header, drafts=True)
        heard = []
        for script in self.scripts:
            if self.stopped():
                return
            heard.append(listen(model, script, pair.n_shared))
        self.heard[variant.label] = curve, heard

    def rehearsed(self) -> Iterator[tuple[Weighed, Way, list[Outcome]]]:
        """Every pair of which all is known; no outcomes for plain decoding."""
        for target in (self.weighed[t.label] for t in self.targets if t.label in self.weighed):
            for way in self.ways:
                if (target.variant.label, way.label) in self.skipped or not (
                    way.model is None or way.model.label in self.heard
                ):
                    continue
                curve, heard = self.heard[way.model.label] if way.model else (None, [None] * len(self.scripts))
                pairs = zip(self.scripts, heard, strict=True) if way is not PLAIN else ()
                yield target, way, [rehearse(s, target.curve, way.names, h, curve) for s, h in pairs]
