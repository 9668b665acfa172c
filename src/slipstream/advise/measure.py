"""Plain and speculative decoding of the same prompts in turn, on one engine: speeds, spread, and sameness.

tok/s: tokens of decoding steps over their seconds, drafting included, prompt reading left out. A kind's speed is that
of its prompts together; its speed-up is the median over runs. `interval` is a bootstrap over (prompt, run) pairs.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slipstream.advise.compare import Comparison, compare
from slipstream.engine import Engine
from slipstream.generation import Chunk, Message, Request, Result
from slipstream.text.tokenizer import Tokenizer

RESAMPLES = 2000
WORTH = 1.05  # a speed-up below this, or a loss within it, is no gain


@dataclass(frozen=True)
class Work:
    """One prompt of a workload; `kind` groups prompts of like work, `why` says what put it there.

    `raw`: the prompt is not for the chat template. `middle` instead of a prompt: what stands before and behind a gap.
    """

    kind: str
    prompt: str | None = None
    messages: Sequence[Message] | None = None
    raw: bool = False
    middle: tuple[str, str] | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """What is asked: the prompt, or the user's last message."""
        if self.messages is not None:
            return str(next(m["content"] for m in reversed(self.messages) if m["role"] == "user"))
        return self.prompt if self.prompt is not None else "".join(self.middle or ())

    def as_line(self) -> dict[str, Any]:
        """As a line of a workload file."""
        asked = {"prompt": self.prompt, "messages": self.messages, "middle": self.middle, "raw": self.raw or None}
        return {"kind": self.kind, **{key: value for key, value in asked.items() if value is not None}}

    def request(self, engine: Engine, raw: bool = False, **fields: Any) -> Request:
        """A prompt goes through the chat template when the model has one, unless it is `raw`.

        A model without tokens for filling gaps completes what stands before.
        """
        if self.middle is not None:
            return Request(_gap(engine.tokenizer, *self.middle), **fields)
        if self.messages is None and not (raw or self.raw) and engine.tokenizer.chat_template:
            return Request(messages=[{"role": "user", "content": self.prompt}], **fields)
        return Request(self.prompt, messages=self.messages, **fields)


def _gap(tokenizer: Tokenizer, before: str, behind: str) -> str | list[int]:
    if tokenizer.fim is None:
        return before
    prefix, suffix, middle = tokenizer.fim
    return [prefix, *tokenizer.encode(before), suffix, *tokenizer.encode(behind), middle]


@dataclass(frozen=True)
class Pair:
    """One plain and one speculative run of the same request."""

    plain: Result
    spec: Result


@dataclass(frozen=True)
class Sample:
    """All runs of one prompt. `comparison` is None where the text may differ by right (sampling verifiers)."""

    kind: str
    pairs: tuple[Pair, ...]
    comparison: Comparison | None


@dataclass(frozen=True)
class Row:
    """One kind of work. Speeds are tokens per second; spreads are lowest and highest run."""

    kind: str
    plain_tps: float | None
    spec_tps: float | None
    speedup: float | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    identical: bool | None
    near_ties: int
    mismatches: int
    prompts: int
    plain_spread: list[float] = field(default_factory=list)
    spec_spread: list[float] = field(default_factory=list)
    speedup_spread: list[float] = field(default_factory=list)
    interval: list[float] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(
    engine: Engine,
    request: Request,
    on_chunk: Callable[[Chunk], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Result:
    """One request to its end, or until `stopped` says so: then what there is, with finish reason "cancelled"."""
    generation = engine.submit(request)
    hear = on_chunk or (lambda _: None)
    try:
        while not generation.done:
            if stopped():
                hear(engine.cancel(generation))
            elif (chunk := engine.step().get(generation)) is not None:
                hear(chunk)
    finally:
        if not generation.done:
            engine.cancel(generation)
    return generation.result()


def pair(
    engine: Engine, request: Request, plain_first: bool, stopped: Callable[[], bool] = lambda: False
) -> Pair | None:
    """Both ways once, neither with anything left of an earlier run; None when stopped before both were complete."""
    done: dict[bool, Result] = {}
    for speculative in (False, True) if plain_first else (True, False):
        done[speculative] = run(engine, replace(request, speculative=speculative), stopped=stopped)
        if done[speculative].finish_reason == "cancelled":
            return None
    return Pair(done[False], done[True])


def sample(engine: Engine, kind: str, request: Request, pairs: Sequence[Pair]) -> Sample:
    """The pairs of one prompt, and whether the text is the same; needs at least one pair and an idle engine."""
    if (request.verify or engine.verify) != "exact" and not request.sampling.greedy:
        return Sample(kind, tuple(pairs), None)
    texts = pairs[0].plain.ids, pairs[0].spec.ids
    return Sample(kind, tuple(pairs), compare(engine, prompt_ids(engine, request), request.sampling, *texts))


def prompt_ids(engine: Engine, request: Request) -> list[int]:
    if request.messages is not None:
        return engine.encode_chat(request.messages)
    prompt = request.prompt or ""
    return engine.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)


class Workload:
    """Measures prompts in rounds, each prompt once both ways in a round, so that a disturbance hits all kinds alike."""

    def __init__(self, engine: Engine, works: Sequence[Work], raw: bool = False, **fields: Any) -> None:
        self.engine, self.works = engine, works
        self.requests = [w.request(engine, raw, **fields) for w in works]
        self.pairs: list[list[Pair]] = [[] for _ in works]

    def rounds(self, n: int, stopped: Callable[[], bool] = lambda: False, budget_s: float = math.inf) -> Iterator[Work]:
        """Yields each prompt after it was measured. No new round begins that would probably end after `budget_s`."""
        first = self.requests[0]
        run(self.engine, replace(first, max_tokens=min(8, first.max_tokens or 8)), stopped=stopped)  # warm up
        start = time.perf_counter()
        for number in range(n):
            spent = time.perf_counter() - start
            if number and spent + spent / number > budget_s:
                return
            for i, work in enumerate(self.works):
                both = pair(self.engine, self.requests[i], (number + i) % 2 == 0, stopped)
                if both is None or stopped():
                    return
                self.pairs[i].append(both)
                yield work

    def samples(self) -> list[Sample]:
        """What was measured so far."""
        everything = zip(self.works, self.requests, self.pairs, strict=True)
        return [sample(self.engine, w.kind, request, pairs) for w, request, pairs in everything if pairs]


def rows(samples: Sequence[Sample], seed: int = 0) -> list[Row]:
    """A row for each kind, in order of appearance."""
    kinds = dict.fromkeys(s.kind for s in samples)
    return [row(kind, [s for s in samples if s.kind == kind], seed) for kind in kinds]


def row(kind: str, samples: Sequence[Sample], seed: int = 0) -> Row:
    n_runs = min(len(s.pairs) for s in samples)
    by_run = [[s.pairs[i] for s in samples] for i in range(n_runs)]
    plain = [v for v in (_speed([p.plain for p in pairs]) for pairs in by_run) if v]
    spec = [v for v in (_speed([p.spec for p in pairs]) for pairs in by_run) if v]
    ratios = [v for v in (_ratio(pairs) for pairs in by_run) if v]
    stats = [p.spec.stats for s in samples for p in s.pairs]
    verified, steps = sum(s.verified for s in stats), sum(s.steps for s in stats)
    checked = [s.comparison for s in samples if s.comparison is not None]
    return Row(
        kind=kind,
        plain_tps=statistics.median(plain) if plain else None,
        spec_tps=statistics.median(spec) if spec else None,
        speedup=statistics.median(ratios) if ratios else None,
        acceptance_rate=sum(s.accepted for s in stats) / verified if verified else None,
        mean_acceptance_length=sum(s.emitted for s in stats) / steps if steps else None,
        identical=all(c.identical for c in checked) if checked else None,
        near_ties=sum(c.verdict == "near tie" for c in checked),
        mismatches=sum(c.verdict == "mismatch" for c in checked),
        prompts=len(samples),
        plain_spread=[min(plain), max(plain)] if plain else [],
        spec_spread=[min(spec), max(spec)] if spec else [],
        speedup_spread=[min(ratios), max(ratios)] if ratios else [],
        interval=bootstrap([p for s in samples for p in s.pairs], seed),
    )


def _speed(results: Sequence[Result]) -> float | None:
    seconds = sum(r.stats.decode_s for r in results)
    return sum(r.stats.emitted for r in results) / seconds if seconds else None


def _ratio(pairs: Sequence[Pair]) -> float | None:
    plain, spec = _speed([p.plain for p in pairs]), _speed([p.spec for p in pairs])
    return spec / plain if plain and spec else None


def bootstrap(pairs: Sequence[Pair], seed: int = 0, resamples: int = RESAMPLES) -> list[float] | None:
    """95 % interval of the speed-up, from pairs drawn again with replacement; None for fewer than three pairs."""
    if len(pairs) < 3:
        return None
    rng = random.Random(seed)
    ratios = sorted(v for _ in range(resamples) if (v := _ratio(rng.choices(pairs, k=len(pairs)))))
    if not ratios:
        return None
    return [ratios[int(0.025 * len(ratios))], ratios[min(int(0.975 * len(ratios)), len(ratios) - 1)]]


def verdict(row: Row) -> str:
    """An honest line on one kind of work."""
    if row.speedup is None:
        return "too short to tell"
    if row.mismatches:
        return "WRONG TEXT: please report this"
    low, high = row.interval or (row.speedup, row.speedup)
    # Each run is a ratio of neighbours in time: where runs disagree on who was faster, something else was at work.
    apart = min(row.speedup_spread) > 1 or max(row.speedup_spread) < 1
    if apart and row.speedup >= WORTH and low > 1:
        return f"pays: {row.speedup:.2f}x"
    if apart and row.speedup <= 1 / WORTH and high < 1:
        return f"costs: {row.speedup:.2f}x - leave it off"
    noisy = not apart and not 1 / WORTH < row.speedup < WORTH
    return f"too noisy to tell: {row.speedup:.2f}x" if noisy else f"no gain: {row.speedup:.2f}x"
