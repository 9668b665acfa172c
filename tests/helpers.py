"""Toy targets and drafters that do what a test says, and an engine around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from slipstream.advise.compare import Comparison
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Policy, Want
from slipstream.core.sampling import Sampler
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.generation import Result
from slipstream.models.llamacpp import library
from slipstream.models.machine import cpu_flags, usable_cores
from slipstream.models.toy import Table, ToyModel, ToyTokenizer, markov

PROMPT = [1, 2, 3, 1, 2]
LETTERS = [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz"]


def cached(table: Table, reach: int = 0) -> Table:
    """The same table, remembered; `reach`: it looks at so many last tokens only (0: at all)."""
    look = functools.lru_cache(maxsize=None)(lambda past: table(list(past)))
    return lambda past: look(tuple(past[-reach:] if reach else past))


def markov_table(n_vocab: int, order: int = 2, seed: int = 0, spread: float = 2.0) -> Table:
    return cached(markov(n_vocab, order, seed, spread), order)


class Base:
    """A drafter that knows the settings of each slot; `propose` is left to the kinds below."""

    name = "scripted"

    def __init__(self) -> None:
        self.params: dict[int, SamplingParams] = {}
        self.n_prompt: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.verdicts: list[tuple[Draft, Verdict]] = []

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        assert slot not in self.params, "begin without the end of what was there before"
        self.params[slot], self.n_prompt[slot] = params, len(tokens)
        self.calls.append(("begin", slot))

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        raise NotImplementedError

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        assert logits is None or not len(draft) or len(logits) == len(draft) + 1
        self.calls.append(("observe", slot))
        self.verdicts.append((draft, verdict))

    def end(self, slot: int) -> None:
        del self.params[slot]
        self.calls.append(("end", slot))

    def truth(self, table: Table, slot: int, tokens: Sequence[int], n: int) -> list[int]:
        """The next `n` tokens of the target, computed one at a time without model, loop or verifier."""
        out = list(tokens)
        for _ in range(n):
            sampler = Sampler(self.params[slot], out[: self.n_prompt[slot]])
            for token in out[self.n_prompt[slot] :]:
                sampler.append(token)
            out.append(sampler.pick(table(out), len(out)))
        return out[len(tokens) :]


class Wrong(Base):
    """Never what the target says, on any branch."""

    name = "wrong"

    def __init__(self, table: Table, n_vocab: int) -> None:
        super().__init__()
        self.table, self.n_vocab = table, n_vocab

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        right = self.truth(self.table, slot, tokens, 1)[0]
        first = [(right + 1 + i) % self.n_vocab for i in range(min(want.width, want.nodes, self.n_vocab - 1))]
        chain = [first[0]] * min(want.depth, want.nodes - len(first) + 1)
        n = len(chain)
        return Draft((*chain, *first[1:]), (*range(-1, n - 1), *[-1] * (len(first) - 1)))


class Random(Base):
    """Random trees of random tokens, sometimes empty; siblings differ."""

    name = "random"

    def __init__(self, n_vocab: int, seed: int = 0) -> None:
        super().__init__()
        self.n_vocab, self.rng = n_vocab, np.random.default_rng(seed)

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        rng, toks, parents, depth = self.rng, [], [], {-1: 0}
        if rng.random() < 0.1:
            return EMPTY_DRAFT
        for i in range(want.nodes):
            open_ = [j for j in depth if depth[j] < want.depth and parents.count(j) < want.width]
            if not open_:
                break
            parent = open_[-1] if rng.random() < 0.6 else open_[int(rng.integers(len(open_)))]
            taken = {toks[j] for j, p in enumerate(parents) if p == parent}
            left = [t for t in range(self.n_vocab) if t not in taken]
            toks.append(int(rng.choice(left)))
            parents.append(parent)
            depth[i] = depth[parent] + 1
        return Draft(tuple(toks), tuple(parents))


class Hits(Base):
    """Round `i` offers a chain whose first `hits[i]` tokens are right and the next is wrong; None: an empty draft."""

    name = "hits"

    def __init__(self, table: Table, n_vocab: int, hits: Sequence[int | None]) -> None:
        super().__init__()
        self.table, self.n_vocab, self.hits, self.round = table, n_vocab, hits, 0

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        hits = self.hits[self.round % len(self.hits)]
        self.round += 1
        if hits is None:
            return EMPTY_DRAFT
        right = self.truth(self.table, slot, tokens, want.depth)
        return Draft.chain([t if i < hits else (t + 1) % self.n_vocab for i, t in enumerate(right)], self.name)


class Always(Base):
    """A chain of one and the same token, or of given ones over and over."""

    name = "always"

    def __init__(self, *tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        return Draft.chain([self.tokens[i % len(self.tokens)] for i in range(want.depth)])


def make_drafter(kind: str, table: Table, n_vocab: int, n_ctx: int = 512, n_slots: int = 1) -> Drafter | None:
    """none, self (a draft model equal to the target), wrong, right, random or suffix."""
    if kind == "self":
        return ModelDrafter(ToyModel(table, n_vocab, n_ctx, n_slots))
    makers: dict[str, Callable[[], Drafter | None]] = {
        "none": lambda: None,
        "wrong": lambda: Wrong(table, n_vocab),
        "right": lambda: Hits(table, n_vocab, [1000]),
        "random": lambda: Random(n_vocab, seed=3),
        "suffix": lambda: SuffixDrafter(min_match=1),
    }
    return makers[kind]()


def toy_engine(
    table: Table,
    n_vocab: int,
    drafter: Drafter | str | None = None,
    k: int = 4,
    width: int = 1,
    *,
    ends: Sequence[int] = (),
    pieces: Sequence[bytes] | None = None,
    n_ctx: int = 512,
    n_slots: int = 1,
    n_batch: int = 64,
    recurrent: bool = False,
    policy: Policy | None = None,
    verify: str = "exact",
) -> Engine:
    model = ToyModel(table, n_vocab, n_ctx, n_slots, recurrent, n_batch=n_batch)
    if isinstance(drafter, str):
        drafter = make_drafter(drafter, table, n_vocab, n_ctx, n_slots)
    tokenizer = ToyTokenizer(pieces or LETTERS[:n_vocab], ends)
    return Engine(model, tokenizer, drafter, policy or Fixed(k, width), verify)


def outcome(r: Result) -> tuple[object, ...]:
    """All that a user sees and that must not depend on drafting."""
    logprobs = tuple((t.logprob, t.top_logprobs) for t in r.tokens)
    return r.ids, r.text, r.finish_reason, r.usage, logprobs


def why_bits_differ() -> str:
    """Empty where rows of logits are the same, bit for bit, in any batch and beside anyone; else why they are not."""
    own = library.own_kernels()
    if not own.active:
        return own.reason
    if "amx_int8" in cpu_flags():
        return "products go to AMX here"
    return "" if usable_cores() <= 4 else "with more threads than heads attention is llama.cpp's own"


def assert_own(found: Comparison, *about: object) -> None:
    """The text is the target's own: plain decoding's; where batches round otherwise, it may part at a near-tie."""
    assert found.identical or (found.verdict == "near tie" and why_bits_differ()), (*about, str(found))
