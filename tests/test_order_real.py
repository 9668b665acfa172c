"""Real models in several slots: whatever else is in the cache, a row has the bits of the same text alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from helpers import bits_are_kept
from slipstream.core.cut import cut
from slipstream.core.types import Array, Span
from slipstream.errors import RollbackError
from slipstream.hub import resolve
from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions

STARTS = (30, 290, 530)  # of what is compared; behind 512 cells and Gemma's window as well
LENGTH, N_CTX, WORDS = 40, 768, 30_000


def read(model: LlamaModel, slot: int, tokens: list[int], piece: int) -> None:
    for at in range(0, len(tokens), piece):
        some = tokens[at : at + piece]
        model.forward([Span(slot, some, range(-1, len(some) - 1), ())])
        model.keep(slot, range(len(some)))


@dataclass
class Alone:
    """Texts of random tokens, and their rows one token at a time in a context of their own."""

    path: Path
    texts: list[list[int]] = field(default_factory=list)
    rows: dict[tuple[int, int], Array] = field(default_factory=dict)


@pytest.fixture(
    scope="module",
    params=[
        "smollm2-135m",
        pytest.param("gemma-3-270m", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.large),
    ],
)
def alone(request: pytest.FixtureRequest) -> Alone:
    if why := bits_are_kept():
        pytest.skip(why)
    rng = np.random.default_rng(5)
    found = Alone(resolve(request.param))
    model = LlamaModel(found.path, LlamaOptions(n_ctx=N_CTX))
    for i, start in enumerate(STARTS):
        text = [int(t) for t in rng.integers(100, WORDS, start + LENGTH)]
        model.truncate(0, 0)
        read(model, 0, text[:start], 512)
        for at in range(start, len(text)):
            found.rows[i, at] = model.forward([Span(0, [text[at]], [-1], [0])])[0][0].copy()
            model.keep(0, [0])
        found.texts.append(text)
    model.close()
    return found


@dataclass
class Walk:
    """Steps of random slots with chains and trees, rejections, cuts, and states that are put aside and come back."""

    alone: Alone
    model: LlamaModel
    rng: random.Random
    at: list[int] = field(default_factory=lambda: list(STARTS))
    compared: int = 0
    moved: int = 0

    def step(self) -> None:
        spans, paths = [], []
        for slot, text in enumerate(self.alone.texts):
            true = text[self.at[slot] :][: self.rng.randint(1, 5)]
            if true and self.rng.random() < 0.8:
                span, path = self.tree(slot, true)
                spans.append(span)
                paths.append(path)
        if not spans:
            return
        rows = self.model.forward(spans)
        for span, path, got in zip(spans, paths, rows, strict=True):
            for depth, node in enumerate(path):
                at = self.at[span.slot] + depth
                assert np.array_equal(got[node], self.alone.rows[span.slot, at]), (span.slot, at, depth)
                self.compared += 1
        for span, path in zip(spans, paths, strict=True):
            n = self.rng.randint(1, len(path))
            self.model.keep(span.slot, path[:n])
            self.at[span.slot] += n

    def tree(self, slot: int, true: list[int]) -> tuple[Span, list[int]]:
        """The true tokens among others, which as often as not come first."""
        tokens, parents, path = [true[0]], [-1], [0]
        for token in true[1:]:
            for _ in range(self.rng.randint(0, 2)):
                tokens.append(self.rng.randint(100, WORDS))
                parents.append(self.rng.choice([path[-1], len(tokens) - 2]))
            tokens.append(token)
            parents.append(path[-1])
            path.append(len(tokens) - 1)
        return Span(slot, tokens, parents, range(len(tokens))), path

    def go_back(self) -> None:
        slot = self.rng.randrange(len(STARTS))
        n = max(STARTS[slot], self.at[slot] - self.rng.randint(1, 8))
        if cut(self.model, slot, n) != n:  # a window that was not saved: read again
            read(self.model, slot, self.alone.texts[slot][:n], 100)
        self.at[slot] = n

    def move(self) -> None:
        """A slot's state is put aside, others use its cells, and it comes back."""
        slot = self.rng.randrange(len(STARTS))
        state = self.model.save(slot)
        read(self.model, slot, [self.rng.randint(100, WORDS) for _ in range(self.rng.randint(1, 60))], 64)
        self.model.load(slot, state)
        self.moved += 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_row_has_the_bits_that_it_has_alone(alone: Alone, seed: int) -> None:
    model = LlamaModel(alone.path, LlamaOptions(n_ctx=N_CTX, n_slots=len(STARTS)))
    walk = Walk(alone, model, random.Random(seed))
    try:
        for slot, start in enumerate(STARTS):
            read(model, slot, alone.texts[slot][:start], walk.rng.choice([33, 64, 100, 512]))
        for _ in range(30):
            walk.step()
            if walk.rng.random() < 0.3:
                walk.go_back()
            if walk.rng.random() < 0.2:
                walk.move()
    finally:
        model.close()
    assert walk.compared > 80 and walk.moved > 2


def test_a_state_without_what_lies_before_its_window_cannot_be_cut(alone: Alone) -> None:
    """llama.cpp saves of a windowed layer only what the last token sees: a shorter past would lack some of it."""
    model = LlamaModel(alone.path, LlamaOptions(n_ctx=N_CTX))
    windowed = "gemma" in alone.path.name
    try:
        for slot, fits in ((1, True), (2, not windowed)):
            text = alone.texts[slot]
            model.truncate(0, 0)
            read(model, 0, text, 512)
            model.load(0, model.save(0))
            n = len(text) - 20
            if not fits:
                with pytest.raises(RollbackError):
                    model.truncate(0, n)
            assert cut(model, 0, n) == (n if fits else 0)
            if fits:
                row = model.forward([Span(0, [text[n]], [-1], [0])])[0][0]
                assert np.array_equal(row, alone.rows[slot, n])
                model.keep(0, [0])
    finally:
        model.close()


@pytest.mark.large
def test_without_our_kernels_a_window_is_cut_only_where_nothing_can_be_lost() -> None:
    """There it is not known which cells have been given away."""
    for n_slots in (1, 2):
        model = LlamaModel(resolve("gemma-3-270m"), LlamaOptions(n_ctx=N_CTX, n_slots=n_slots))
        model._order = None
        try:
            read(model, 0, list(range(1000, 1600)), 300)
            assert cut(model, 0, 599) == 599
            read(model, 0, [7, 8, 9], 1)
            assert cut(model, 0, 560) == (560 if n_slots == 1 else 0)
            model.truncate(0, 0)
            read(model, 0, list(range(1000, 1600)), 300)
            model.load(0, model.save(0))
            assert cut(model, 0, 560) == 0
            read(model, 0, list(range(1000, 1400)), 400)
            assert cut(model, 0, 200) == 200
        finally:
            model.close()
