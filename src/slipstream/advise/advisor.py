"""The advisor: the target answers once, every way to draft is rehearsed over its answers, the best are run for real.

What is found out is in `evidence`, step by step; conclude.py makes an advice of it.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from slipstream.advise import measure
from slipstream.advise.candidates import CORPUS, PLAIN, Candidate
from slipstream.advise.evidence import TARGET, Evidence, Run, key
from slipstream.advise.lineup import Lineup, resident
from slipstream.advise.listen import listen
from slipstream.advise.progress import Progress
from slipstream.advise.rehearse import Outcome, Rehearsal, Script
from slipstream.advise.secrets import mask
from slipstream.advise.workload import Loaded
from slipstream.core.cost import Curve
from slipstream.core.sequence import Token
from slipstream.core.types import SamplingParams
from slipstream.drafters.corpus_files import Corpus
from slipstream.engine import Engine
from slipstream.errors import InputError, SlipstreamError
from slipstream.generation import Request, Result
from slipstream.opening import Files, OpenOptions, curve_of, draft_options, fit, load_model, memory_plan, read_corpus
from slipstream.pricing import key as key_of

_WRITE, _HEAR, _PLAY, _RUN = "answers", "draft models", "rehearsal", "runs"
_LIKELY = 100  # tokens whose probabilities are kept; what is left out has little at usual temperatures
_WRITE_SHARE = 0.4  # of the time that may be spent: for the answers
_PLAY_S = 0.5  # seconds that a rehearsal of one answer is thought to take


@dataclass(frozen=True)
class Settings:
    """`runs` is how often each prompt is run for real, as far as `budget_s` allows; `real` how many ways are."""

    max_tokens: int = 128
    runs: int = 2
    real: int = 3
    budget_s: float = 3600.0
    temperature: float = 0.0
    seed: int = 0
    threads: int = 0
    corpus: Sequence[Path] = ()

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, seed=self.seed)


@dataclass(frozen=True)
class Item:
    """A prompt of the workload that was answered: its key in the evidence, and the request."""

    kind: str
    key: str
    request: Request
    script: Script


@dataclass
class Advisor:
    """Call `write`, `hear`, `predict` and `run` in this order; each stops early when `stopped` says so.

    Raises as Engine.open does for the target; a way that cannot be opened is left out, with the reason in `skipped`.
    """

    target: str
    loaded: Loaded
    ways: Sequence[Candidate]
    settings: Settings
    evidence: Evidence
    progress: Progress
    stopped: Callable[[], bool] = lambda: False
    anew: bool = False  # nothing that is known of these prompts counts
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)  # ways that were run for real
    corpus: Corpus | None = None
    _steps: list[tuple[float, int]] = field(default_factory=list)  # of each answer: seconds beside forwards, and steps

    @property
    def options(self) -> OpenOptions:
        return OpenOptions(threads=self.settings.threads)

    @property
    def drawn(self) -> bool:
        """Whether some way draws its guesses, so that the target's probabilities are needed."""
        return self.settings.temperature > 0 and any(way.drawn for way in self.usable)

    @property
    def usable(self) -> list[Candidate]:
        return [way for way in self.ways if way.draft not in self.skipped]

    def check(self) -> None:
        """From the files' headers alone: leave out what has no common vocabulary with the target or no memory."""
        fit(Files.find(self.target, PLAIN), self.options)
        for way in self.ways:
            if way.model is None:
                continue
            try:
                fit(Files.find(self.target, way.model), self.options)
            except SlipstreamError as e:
                self.skipped[way.draft] = e.message

    # -- what the target says ------------------------------------------------------------------------------------------

    def write(self) -> None:
        """The target's answers; those that were written before are not written again."""
        before, works = resident(), _in_turn(self.loaded.works)
        if self.anew:
            self.evidence.renew()
        self.progress.expect(_WRITE, len(works), 0.0)
        with Engine.open(self.target, "suffix", self.options) as engine:
            curve = self.evidence.curves.setdefault(TARGET, engine.policy.prices.curve)  # type: ignore[attr-defined]
            self._expect(curve, len(works))
            if self.settings.corpus:
                self.corpus = read_corpus(self.settings.corpus, engine.tokenizer.encode)
                self.evidence.recognise(CORPUS, hashlib.sha256(self.corpus.tokens.tobytes()).hexdigest())
            for work in works:
                if self.stopped():
                    return
                if self.items and self.progress.spent_s > _WRITE_SHARE * self.settings.budget_s:
                    self.left_out.append(("the rest of the prompts", "answering them would take too long"))
                    break
                why = self._take(engine, work)
                if why:
                    self.left_out.append((f"a prompt ({work.kind})", mask(why)))
            self.evidence.memory.setdefault(TARGET, resident() - before)

    def _take(self, engine: Engine, work: measure.Work) -> str:
        """One prompt and its answer; why it cannot be used, or nothing."""
        try:
            request = work.request(engine, max_tokens=self.settings.max_tokens, sampling=self.settings.sampling)
            prompt = measure.prompt_ids(engine, request)
        except InputError as e:  # such as a chat that the model's template does not take
            return e.message
        most = engine.model.caps.n_ctx
        if not 0 < len(prompt) < most:
            return f"it has {len(prompt)} tokens, and the context holds {most}" if prompt else "it is empty"
        name = key(prompt, self.settings.max_tokens, self.settings.sampling)
        if self.anew and all(item.key != name for item in self.items):  # a prompt may come twice
            self.evidence.forget(name)
        if name not in self.evidence.answers or (self.drawn and name not in self.evidence.likely):
            self.progress.begin()
            if not self._answer(engine, name, request):
                return ""
        self.progress.done(_WRITE, work.kind)
        said = self.evidence.answers[name]
        if len(said) < 2:
            return "the model answers with one token or none"
        self.items.append(Item(work.kind, name, request, Script(work.kind, prompt, said)))
        return ""

    def _answer(self, engine: Engine, name: str, request: Request) -> bool:
        """Have it answered, and keep the answer; False when stopped before its end."""
        asked = replace(request, logprobs=_LIKELY) if self.drawn else request
        result = measure.run(engine, asked, stopped=self.stopped)
        if result.finish_reason == "cancelled":
            return False
        self._steps.append((result.stats.draft_s + result.stats.verify_s, result.stats.steps))
        self.evidence.overhead_s = sum(s for s, _ in self._steps) / max(sum(n for _, n in self._steps), 1)
        self.evidence.answers[name] = list(result.ids)
        if self.drawn:
            self.evidence.likely[name] = [_likely(t, self.settings.temperature) for t in result.tokens]
        self.evidence.write()
        return True

    def _expect(self, curve: Curve, n: int) -> None:
        """What is to come, with what it would take in plain decoding at most."""
        each = self.settings.max_tokens * curve.at(1, 200) + 200 * curve.at(64, 200) / 64
        models = {way.model for way in self.usable if way.model}
        self.progress.expect(_WRITE, n, each)
        self.progress.expect(_HEAR, n * len(models), each / 5)
        self.progress.expect(_PLAY, n * len(self.usable), _PLAY_S)
        self.progress.expect(_RUN, n * (1 + min(self.settings.real, len(self.usable))), each)

    # -- what draft models would have said -----------------------------------------------------------------------------

    def hear(self) -> None:
        """What each draft model would have guessed of the answers, and what its forwards cost."""
        for model in dict.fromkeys(way.model for way in self.usable if way.model):
            if self.stopped():
                return
            try:
                self._listen(model)
            except SlipstreamError as e:
                self.skipped |= {way.draft: e.message for way in self.ways if way.model == model}

    def _listen(self, model: str) -> None:
        files = Files.find(self.target, model)
        assert files.draft is not None and files.pair is not None  # a draft model was named
        self.evidence.recognise(model, key_of(files.draft.path))
        heard = self.evidence.heard.setdefault(model, {})
        for item in self.items:  # what was heard without the target's probabilities is heard again
            if self.drawn and item.key in heard and heard[item.key].overlap is None:
                del heard[item.key]
        if model in self.evidence.curves and all(item.key in heard for item in self.items):
            return
        before, o = resident(), fit(files, self.options)
        small = draft_options(o, files.draft, o.n_ctx)
        played = load_model(files.draft, small)
        try:
            self.evidence.curves[model] = curve_of(played, files.draft, small, drafts=True)
            for item in self.items:
                if self.stopped():
                    return
                if item.key not in heard:
                    self.progress.begin()
                    likely = self.evidence.likely.get(item.key)
                    heard[item.key] = listen(
                        played, item.script.prompt, item.script.said, files.pair.n_shared, self.settings.sampling,
                        [dict(each) for each in likely] if likely else None,
                    )  # fmt: skip
                self.progress.done(_HEAR, model)
            self.evidence.memory.setdefault(model, resident() - before)
        finally:
            played.close()
            self.evidence.write()

    # -- on paper ------------------------------------------------------------------------------------------------------

    def predict(
        self, target: Curve | None = None, drafts: Mapping[str, Curve] | None = None
    ) -> dict[str, list[Outcome]]:
        """Every way over every answer, in order of the items; other prices than the measured ones may be given."""
        outcomes = {}
        for way in self.usable:
            curves = self.evidence.curves if drafts is None else drafts
            price = curves.get(way.model) if way.model else None
            heard = self.evidence.heard.get(way.model or "", {})
            if way.model and (price is None or any(item.key not in heard for item in self.items)):
                continue  # stopped before all was heard
            curve = target or self.evidence.curves[TARGET]
            corpus = self.corpus if way.corpus else None
            rehearsal = Rehearsal(curve, way.names, price, way.k, way.width, corpus, self.evidence.overhead_s)
            self.progress.begin()
            found = []
            for item in self.items:
                own = heard.get(item.key)
                if own is not None and way.drawn and self.drawn:
                    own = own.drawn(item.script.said, self.settings.seed, int(item.key, 16))
                found.append(rehearsal.play(item.script, own))
                self.progress.done(_PLAY, way.draft)
            outcomes[way.draft] = found
        return outcomes

    def best(self, outcomes: Mapping[str, Sequence[Outcome]]) -> list[Candidate]:
        """The ways that are worth running: those predicted to be fastest over all answers, and the best one that needs
        no model, which is what remains where draft models do not pay."""

        used = Counter(item.kind for item in self.items)
        weight = {kind: self.loaded.mix[kind] / n for kind, n in used.items()}

        def speed(way: Candidate) -> float:
            own = outcomes[way.draft]
            return sum(weight[o.kind] * o.plain_s for o in own) / sum(weight[o.kind] * o.seconds for o in own)

        ways = sorted((w for w in self.usable if outcomes.get(w.draft)), key=speed, reverse=True)
        taken = ways[: self.settings.real]
        free = next((w for w in ways if w.model is None), None)
        if free is not None and free not in taken:
            taken = [*taken[: max(self.settings.real - 1, 1)], free]
        return taken

    # -- for real ------------------------------------------------------------------------------------------------------

    def run(self, ways: Sequence[Candidate]) -> None:
        """Plain decoding and these ways in turn, each prompt once in a round; where time runs out, it stops."""
        for group in self._groups(ways):
            if self.stopped() or self.progress.spent_s > self.settings.budget_s:
                return
            self.tried += [way.draft for way in group]
            if self._missing(group):
                with Lineup(self.target, group, self.options, self.corpus) as lineup:
                    self._rounds(lineup, [PLAIN, *(way.draft for way in group)])

    def _groups(self, ways: Sequence[Candidate]) -> list[list[Candidate]]:
        """All together, if their models fit in memory at once; else one after the other."""
        models = dict.fromkeys(way.model for way in ways if way.model)
        plans = [memory_plan(Files.find(self.target, model), self.options)[0] for model in models]
        alone = memory_plan(Files.find(self.target, PLAIN), self.options)[0]
        for device, have in alone.available.items():
            used = alone.needed[device] + sum(plan.needed[device] - alone.needed[device] for plan in plans)
            if used > have:
                return [[way] for way in ways]
        return [list(ways)] if ways else []

    def _missing(self, ways: Sequence[Candidate]) -> bool:
        return any(len(self.runs(item, [w.draft for w in ways])) < self.settings.runs for item in self.items)

    def runs(self, item: Item, drafts: Sequence[str]) -> list[dict[str, Run]]:
        """The rounds of a prompt in which plain decoding and all these ways were run."""
        rounds = self.evidence.rounds.get(item.key, [])
        return [r for r in rounds if all(d in r for d in (PLAIN, *drafts))]

    def _rounds(self, lineup: Lineup, names: list[str]) -> None:
        order = random.Random(self.settings.seed)
        warm = self.items[0].request
        lineup.run(PLAIN, Request(warm.prompt, messages=warm.messages, max_tokens=8), self.stopped)
        left = [self.settings.runs - len(self.runs(item, names[1:])) for item in self.items]
        self.progress.expect(_RUN, sum(max(n, 0) for n in left) * len(names), 0.0)
        for number in range(self.settings.runs):
            for i, item in enumerate(self.items):
                if len(self.runs(item, names[1:])) > number:
                    continue
                if self.stopped() or self.progress.spent_s > self.settings.budget_s:
                    return
                ways = order.sample(names[1:], len(names) - 1)
                found = self._round(lineup, item, [PLAIN, *ways] if (number + i) % 2 == 0 else [*ways, PLAIN])
                if found is None:
                    return
                self.evidence.rounds.setdefault(item.key, []).append(found)
                self.evidence.write()

    def _round(self, lineup: Lineup, item: Item, names: Sequence[str]) -> dict[str, Run] | None:
        results: dict[str, Result] = {}
        found: dict[str, Run] = {}
        for name in names:
            self.progress.begin()
            both = lineup.run(name, item.request, self.stopped)
            if both is None:
                return None
            results[name], found[name] = both
            self.progress.done(_RUN, f"{item.kind}, {name}")
        return lineup.compared(item.request, results, found)


def _likely(token: Token, temperature: float) -> list[tuple[int, float]]:
    """Probabilities at this temperature of the likeliest tokens, from their logarithms at temperature 1."""
    logs = np.array([log for _, log in token.top_logprobs]) / temperature
    probs = np.exp(logs - logs.max())
    return [(t, float(p)) for (t, _), p in zip(token.top_logprobs, probs / probs.sum(), strict=True)]


def _in_turn(works: Sequence[measure.Work]) -> list[measure.Work]:
    """One prompt of each kind after the other, so that every kind has had its share wherever time runs out."""
    seen: dict[str, int] = {}
    turns = []
    for work in works:
        seen[work.kind] = seen.get(work.kind, 0) + 1
        turns.append(seen[work.kind])
    return [work for _, work in sorted(zip(turns, works, strict=True), key=lambda pair: pair[0])]
