"""Who races: Slipstream in several ways, all answering the same token ids. `llama_server.py` holds the others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream import Draft, Engine, SamplingParams
from slipstream.advise.measure import run
from slipstream.core.ports import Drafter, Want
from slipstream.core.types import EMPTY_DRAFT, Array, Verdict
from slipstream.generation import Chunk, Request

PLAIN = "plain"
LATE = 64  # tokens after which a floor is asked for even with a drafter that is always wrong
FREE = "suffix"  # what drafts when no model is given
KNOWING = ("oracle", "wrong")  # need to be told the answer of plain decoding


@dataclass(frozen=True)
class Asked:
    """One prompt of the race as token ids. `number` tells prompts apart; `shared`: its beginning is that of others."""

    number: int
    kind: str
    ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    shared: bool = False


@dataclass(frozen=True)
class Answer:
    """What came back. `tokens` and `decode_s` are of decoding, so without the first token and without prompt reading;
    `first_s` is the time to the first token and `wall_s` that of the whole request. `late_*`: from token 64 on."""

    ids: tuple[int, ...]  # without an end token
    finish: str
    tokens: int
    decode_s: float
    first_s: float
    wall_s: float
    drafted: int = 0
    accepted: int = 0
    late_tokens: int = 0
    late_s: float = 0.0
    by_drafter: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def tps(self) -> float | None:
        return self.tokens / self.decode_s if self.tokens > 0 and self.decode_s > 0 else None


class Contestant(Protocol):
    """`name` is unique in a race, `program` says whose plain decoding it is to be compared with."""

    @property
    def name(self) -> str: ...
    @property
    def program(self) -> str: ...

    def answer(self, asked: Asked, plain: Sequence[int] | None) -> Answer:
        """Answer from a clean slate; `plain` is what Slipstream's plain decoding said, where that is known."""
        ...

    def close(self) -> None: ...


class Prophet:
    """A drafter that knows the target's text: the ceiling (`off` 0), or one that always misses it by `off` ids."""

    def __init__(self, name: str, prob: float, off: int = 0, n_vocab: int = 0) -> None:
        self.name, self.prob, self.off, self.n_vocab = name, prob, off, n_vocab
        self.text: Sequence[int] = ()
        self._start = 0

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        self._start = len(tokens)

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        at = len(tokens) - self._start
        if at and tuple(tokens[self._start :]) != tuple(self.text[:at]):
            return EMPTY_DRAFT  # a near-tie led elsewhere: nothing is known from here
        known = self.text[at : at + min(want.nodes, want.depth)]
        missed = [(t + self.off) % self.n_vocab for t in known] if self.off else known
        return Draft.chain(missed, self.name, prob=(self.prob,) * len(missed))

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        return None


class Slipstream:
    """One way to run an engine; several may share it, as only one runs at a time."""

    program = "slipstream"

    def __init__(self, name: str, engine: Engine, speculative: bool = True, prophet: Prophet | None = None) -> None:
        self.name, self.engine, self.speculative, self.prophet = name, engine, speculative, prophet
        self.fresh = deepcopy(engine.policy)  # drafters forget at the end of a sequence, policies do not
        self.end = engine.tokenizer.encode(engine.tokenizer.eos, special=True)

    def answer(self, asked: Asked, plain: Sequence[int] | None) -> Answer:
        self.engine.policy = deepcopy(self.fresh)
        if self.prophet is not None:
            self.prophet.text = (*plain, *self.end) if plain else ()
        clock = Clock(len(asked.ids))
        request = Request(
            asked.ids,
            max_tokens=asked.max_tokens,
            sampling=asked.sampling,
            speculative=self.speculative,
            reuse_cache=asked.shared,
        )
        result = run(self.engine, request, clock.hear)
        stats = result.stats
        return Answer(
            ids=result.ids,
            finish=result.finish_reason,
            tokens=stats.emitted,
            decode_s=stats.decode_s,
            first_s=clock.first_s,
            wall_s=time.perf_counter() - clock.start,
            drafted=stats.verified,
            accepted=stats.accepted,
            late_tokens=clock.late_tokens,
            late_s=clock.late_s,
            by_drafter=stats.by_drafter,
        )

    def close(self) -> None:
        self.engine.close()


class Clock:
    """Hears the chunks of one answer: when the first token came, and what the late steps gave."""

    def __init__(self, n_prompt: int) -> None:
        self.n_prompt, self.start = n_prompt, time.perf_counter()
        self.first_s = self.late_s = 0.0
        self.late_tokens = 0

    def hear(self, chunk: Chunk) -> None:
        if chunk.tokens and not self.first_s:
            self.first_s = time.perf_counter() - self.start
        r = chunk.record
        if r is not None and r.position >= self.n_prompt + LATE:
            self.late_tokens += r.emitted
            self.late_s += r.draft_s + r.forward_s + r.verify_s


@dataclass(frozen=True)
class Setting:
    """What all engines of a race have in common. `fixed`: drafts of this length, instead of the priced policy."""

    target: str
    draft: str | None
    n_ctx: int
    threads: int
    fixed: int | None = None

    @property
    def policy(self) -> dict[str, Any]:
        return {"policy": "priced"} if self.fixed is None else {"k": self.fixed}

    def open(self, draft: str | Drafter | None, **policy: Any) -> Engine:
        return Engine.open(self.target, draft, n_ctx=self.n_ctx, threads=self.threads, **policy)


def names(setting: Setting) -> list[str]:
    """Slipstream's contestants; the plain one comes first."""
    return [PLAIN, "priced", *(["priced+draft"] if setting.draft else []), *KNOWING]


def open_contestant(name: str, setting: Setting) -> Slipstream:
    """The one place that knows how each is opened. Raises what Engine.open does."""
    if name == PLAIN:
        return Slipstream(name, setting.open(None), speculative=False)
    if name in KNOWING:
        prophet = Prophet(name, prob=1.0) if name == "oracle" else Prophet(name, prob=0.9, off=1)
        engine = setting.open(prophet, **setting.policy)
        prophet.n_vocab = engine.model.caps.n_vocab
        return Slipstream(name, engine, prophet=prophet)
    draft = FREE if name == "priced" else f"{FREE},{setting.draft}"
    return Slipstream(name, setting.open(draft, **setting.policy))


def open_all(wanted: Sequence[str], setting: Setting) -> list[Slipstream]:
    """Open those of `names` that are wanted. Plain decoding uses the first other's engine: the same weights in the same
    place, and one copy less in memory."""
    others: list[Slipstream] = []
    try:
        for name in wanted:
            if name != PLAIN:
                others.append(open_contestant(name, setting))
        if not others:
            return [open_contestant(PLAIN, setting)]
        return [Slipstream(PLAIN, others[0].engine, speculative=False), *others]
    except BaseException:
        for one in others:
            one.close()
        raise
