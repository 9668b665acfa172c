"""Rehearsal: what would drafting have done to texts that the target has written already?

The real loop, policy, verification and drafters run over each text with models that are played (played.py), in virtual
time. So any drafters, prices and policies are tried in a fraction of a second a text, without the target. While all
guesses are right, a drafter stands exactly where the text does, so its guesses there are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.advise.listen import listen as _listen
from slipstream.advise.played import Clock, Heard, Ids, PlayedDraft, PlayedTarget
from slipstream.core.cost import Curve, Prices
from slipstream.core.loop import Loop
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Model, Policy, Want
from slipstream.core.priced import MOST, Priced
from slipstream.core.sequence import Sequence as TokenSequence
from slipstream.core.stats import Stats
from slipstream.core.types import SamplingParams, StepRecord
from slipstream.drafters import create
from slipstream.drafters.corpus import CorpusDrafter
from slipstream.drafters.corpus_files import Corpus
from slipstream.drafters.model import ModelDrafter

_MODEL = "model"  # name of the draft model among the drafters


@dataclass(frozen=True)
class Script:
    """What the target said to a prompt: token ids. `kind` is the kind of work."""

    kind: str
    prompt: Sequence[int]
    said: Sequence[int]


@dataclass(frozen=True)
class Outcome:
    """Seconds of decoding behind the first token, plain and with drafts, and what was drafted."""

    kind: str
    plain_s: float
    seconds: float
    stats: Stats
    records: Sequence[StepRecord] = field(repr=False, default=())

    @property
    def speedup(self) -> float:
        return self.plain_s / self.seconds if self.seconds else 1.0


@dataclass
class Rehearsal:
    """One way to draft: drafters without a model by name, a corpus, and a draft model if its prices are given.

    `k` fixes the draft length, else each step is priced; `width` above 1 drafts trees. `overhead_s` is what choosing
    and checking add to a step. What the policy learns of one text it knows in the next, as an engine does.
    """

    target: Curve
    drafters: Sequence[str] = ()
    draft: Curve | None = None
    k: int | None = None
    width: int = 1
    corpus: Corpus | None = None
    overhead_s: float = 0.0
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        prices = {_MODEL: Prices(self.draft)} if self.draft else {}
        most = Want(MOST.nodes, MOST.depth, self.width)
        fixed = None if self.k is None else Fixed(self.k, self.width)
        self.policy = fixed or Priced(Prices(self.target), prices, most)
        self._corpus = None if self.corpus is None else CorpusDrafter(self.corpus)

    def play(self, script: Script, heard: Heard | None = None) -> Outcome:
        """One text; `heard`: what the draft model guessed of it."""
        guesses = [heard.guess[0].ravel().tolist()] if heard else []
        others = 0 if self.corpus is None else int(np.max(self.corpus.tokens, initial=0))
        ids = Ids([script.prompt, script.said, *guesses], few=self.corpus is None, others=others)
        tokens, n_prompt, clock = ids([*script.prompt, *script.said]), len(script.prompt), Clock()
        made = self._drafters(clock, ids, tokens, n_prompt, heard)
        loop = Loop(PlayedTarget(clock, self.target, ids.n, tokens), made, self.policy, clock)
        sequence = TokenSequence(0, tokens[:n_prompt], SamplingParams(), len(tokens))
        loop.begin(sequence)
        records: list[StepRecord] = []
        start = plain_s = 0.0
        while sequence.finish is None:
            (emission,) = loop.step([sequence])
            at = emission.record.position
            if at == n_prompt:
                start = clock.now  # reading the prompt, and the token that comes with it, are the same either way
                continue
            records.append(emission.record)
            clock.now += self.overhead_s
            plain_s += sum(self.target.at(1, at - 1 + i) for i in range(emission.record.emitted))
        loop.end(sequence)
        return Outcome(script.kind, plain_s, clock.now - start, Stats.of(records), records)

    def _drafters(
        self, clock: Clock, ids: Ids, tokens: Sequence[int], n_prompt: int, heard: Heard | None
    ) -> list[Drafter]:
        made: list[Drafter] = [create(name, self.k is None) for name in self.drafters]
        if self._corpus is not None:
            made.append(self._corpus)
        if heard is not None and self.draft is not None:
            played = PlayedDraft(clock, self.draft, ids.n, tokens, n_prompt, heard, ids)
            drafter = ModelDrafter(played, name=_MODEL)
            played.skipped = lambda: drafter.lag(0, 0)[1]
            made.append(drafter)
        return made


def listen(model: Model, script: Script, n_shared: int = 0, params: SamplingParams | None = None) -> Heard:
    """What a draft model would have guessed of a script; see listen.py."""
    return _listen(model, script.prompt, script.said, n_shared, params)


def rehearse(
    script: Script, target: Curve, drafters: Sequence[str], heard: Heard | None = None, draft: Curve | None = None
) -> Outcome:
    """One text by itself, drafted by drafters without a model (by name), and by a draft model if its guesses and prices
    are given."""
    return Rehearsal(target, drafters, draft if heard is not None else None).play(script, heard)
