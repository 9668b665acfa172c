"""Models and drafters that live in virtual time: a forward takes what a price list says, and no test ever waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from helpers import LETTERS
from slipstream.core.cost import Curve, Prices
from slipstream.core.ports import Drafter, Want
from slipstream.core.priced import MOST, Priced
from slipstream.core.types import Array, Draft, SamplingParams, Span, Verdict
from slipstream.engine import Engine
from slipstream.generation import Request
from slipstream.models.toy import Table, ToyModel, ToyTokenizer, scripted

N = 24  # tokens of the vocabulary


def curve(*points: tuple[int, float], past: float = 0.0, past_token: float = 0.0) -> Curve:
    """From milliseconds."""
    sizes, ms = zip(*points, strict=True)
    return Curve(sizes, tuple(t / 1000 for t in ms), 16, past / 1000, past_token / 1000)


# The two builds of DESIGN.md, a graphics card, a model 15 times as small, and prices that only ever grow.
CURVES = {
    "amx": curve((1, 82), (2, 146), (3, 156), (4, 156), (6, 157), (8, 159), (12, 196), (16, 208), past=0.005),
    "avx": curve((1, 88), (2, 129), (3, 164), (4, 140), (6, 214), (8, 262), (12, 354), (16, 362), past=0.005),
    "flat": curve((1, 30), (64, 33), past=0.001),
    "small": curve((1, 5.5), (2, 7.5), (4, 9), (8, 14), (16, 22), (32, 44), past_token=0.0003),
    "linear": curve((1, 40), (2, 70), (64, 1930), past=0.01),
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(ToyModel):
    """A forward of n tokens, all slots together, takes T(n, mean past), give or take 3 %."""

    def __init__(
        self, clock: Clock, prices: Curve, table: Table, n_vocab: int = N, seed: int = 0, noise: float = 0.03, **kw: int
    ) -> None:
        super().__init__(table, n_vocab, **{"n_ctx": 4096, **kw})  # type: ignore[arg-type]
        self.clock, self.prices, self.noise = clock, prices, noise
        self.rng = np.random.default_rng([seed, 77])

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        rows = super().forward(spans)
        context = sum(self.n_past(s.slot) for s in spans) // len(spans)
        self.clock.now += self.prices.at(self.forwards[-1], context) * (1 + self.noise * self.rng.standard_normal())
        return rows


class Guess:
    """Knows the script; each position is guessed rightly with probability `p`, and `claim` is what it says of itself.

    `each`: a drafted token costs that much (seconds), and a read one a tenth; None: it is not a costly drafter.
    """

    def __init__(
        self,
        script: Sequence[int],
        p: float,
        claim: float = 0.9,
        each: float | None = None,
        clock: Clock | None = None,
        name: str = "guess",
        n_prompt: int = 1,
        slots: Sequence[int] | None = None,  # where it is right; everywhere
    ) -> None:
        self.script, self.p, self.claim, self.each, self.clock = script, p, claim, each, clock
        self.name, self.costly, self.n_prompt, self.slots = name, each is not None, n_prompt, slots
        self.synced: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        self.spent: list[tuple[float, float, bool]] = []  # when, how many seconds, for a probe?
        self.reads: list[int] = []

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        self.synced[slot] = self.skipped[slot] = 0

    def lag(self, slot: int, n_tokens: int) -> tuple[int, int]:
        return max(n_tokens - self.synced[slot], 1), self.skipped[slot]

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        start = self.clock.now if self.clock else 0.0
        self._read(slot, len(tokens), want.read)
        out: list[int] = []
        for i in range(min(want.depth, want.nodes)):
            at = len(tokens) - self.n_prompt + i
            lucky = np.random.default_rng([at, slot, int(1000 * self.p)]).random() < self.p
            right = self.script[at % len(self.script)]
            out.append(right if lucky and (self.slots is None or slot in self.slots) else (right + 1 + i) % N)
            if want.go_on is not None and not want.go_on([(None, self.claim)] * len(out)):
                break
            self._tick(self.each if i + 1 < min(want.depth, want.nodes) else 0.0)
        if self.clock:
            self.spent.append((start, self.clock.now - start, self.probing(slot)))
        return Draft.chain(out, self.name, prob=[self.claim] * len(out))

    def probing(self, slot: int) -> bool:
        """Whether the policy calls what it asks for a probe; for a test to say."""
        return False

    def _read(self, slot: int, n: int, read: int) -> None:
        lag = self.lag(slot, n)[0]
        if read >= n:
            lag, self.skipped[slot] = n, 0
        elif 0 < read < lag:
            lag, self.skipped[slot] = read, n - read
        self.synced[slot] = n
        self.reads.append(lag)
        self._tick((self.each or 0.0) * (1 + 0.1 * (lag - 1)))

    def _tick(self, seconds: float | None) -> None:
        if self.clock and seconds:
            self.clock.now += seconds

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        return None


def reading(each: float) -> Prices:
    """The true prices of a costly Guess."""
    return Prices(Curve((1, 2, 64), (each, 1.1 * each, 7.3 * each)))


def text(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng([seed, 5]).integers(1, N, n)]


class Bench:
    """An engine in virtual time, with the priced policy, that knows when each token came."""

    def __init__(
        self,
        prices: Curve,
        script: Sequence[int],
        drafters: Iterable[Drafter] = (),
        clock: Clock | None = None,
        costs: dict[str, Prices] | None = None,
        *,
        seed: int = 0,
        n_prompt: int = 1,
        n_slots: int = 1,
        noise: float = 0.03,
        most: Want = MOST,
    ) -> None:
        self.clock = clock or Clock()
        table = scripted(script, N, n_prompt)
        model = TimedModel(self.clock, prices, table, seed=seed, n_slots=n_slots, noise=noise)
        self.policy = Priced(Prices(prices), costs, most)
        self.engine = Engine(model, ToyTokenizer(LETTERS[:N]), list(drafters), self.policy)
        self.engine._loop.clock = self.clock
        self.model, self.n_prompt = model, n_prompt

    def run(self, n: int) -> Run:
        out = Run()
        for chunk in self.engine.stream([0] * self.n_prompt, max_tokens=n):
            out.times += [self.clock.now] * len(chunk.tokens)
            out.records.append(chunk.record)
            out.ids += [t.id for t in chunk.tokens]
        return out


class Run:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.records: list = []  # type: ignore[type-arg]
        self.ids: list[int] = []

    def seconds(self, a: int, b: int) -> float:
        """From the token `a` to the token `b`."""
        return self.times[b - 1] - self.times[a - 1]


class Batch(Run):
    """All slots together: `times[i]` is when the last of them has its token `i`."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[list[float]] = []  # when each slot has its tokens
        self.texts: list[list[int]] = []


def batch(bench: Bench, n: int, slots: int = 4) -> Batch:
    running = [bench.engine.submit(Request([0] * bench.n_prompt, max_tokens=n)) for _ in range(slots)]
    out = Batch()
    out.slots = [[] for _ in running]
    while any(not g.done for g in running):
        for g, chunk in bench.engine.step().items():
            out.slots[running.index(g)] += [bench.clock.now] * len(chunk.tokens)
            out.records.append(chunk.record)
    out.times = [max(t[i] for t in out.slots) for i in range(n)]
    out.texts = [list(g.result().ids) for g in running]
    return out


def guessing(
    name: str, seed: int, p: float, share: float | None, n: int, slots: Sequence[int] | None = None, **kw: int
) -> tuple[Bench, Guess]:
    """A bench with one scripted drafter, whose guesses are right with probability `p` and cost `share` of a plain step.

    The script is `text(n + 40, seed)`."""
    clock, script = Clock(), text(n + 40, seed)
    each = None if share is None else share * CURVES[name].at(1, 16)
    guess = Guess(script, p, 0.9, each, clock, n_prompt=kw.get("n_prompt", 1), slots=slots)
    costs = None if each is None else {guess.name: reading(each)}
    return Bench(CURVES[name], script, [guess], clock, costs, seed=seed, **kw), guess
