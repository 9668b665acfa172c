"""What goes wrong half way leaves nothing behind: interrupts, failing plug-ins, too many branches, closed engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers import Base, markov_table, toy_engine
from slipstream.core.policy import Fixed
from slipstream.core.ports import Want
from slipstream.core.types import Array, Draft, Span
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.errors import UsageError
from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions
from slipstream.models.llamacpp.tokenizer import LlamaTokenizer
from slipstream.models.toy import ToyModel

N = 12
TABLE = markov_table(N, order=2)


class Wild(Base):
    """A plug-in without manners: a bush of everything, unknown ids included."""

    name = "wild"

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        chain = [tokens[-1], tokens[0], tokens[-1]]
        leaves = [*range(N), -3, 10**9]
        return Draft((*chain, *leaves, *leaves), (-1, 0, 1, *[-1] * len(leaves), *[0] * len(leaves)))


class Interrupted(ToyModel):
    """Ctrl-C arrives right after a forward, when asked for."""

    armed = False

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        rows = super().forward(spans)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return rows


def test_a_plug_in_may_propose_anything() -> None:
    plain = toy_engine(TABLE, N).generate([1, 2], max_tokens=60)
    for width in (1, 3):
        r = toy_engine(TABLE, N, Wild(), k=8, width=width).generate([1, 2], max_tokens=60)
        assert r.ids == plain.ids
        assert r.stats.discarded > 0


@pytest.fixture(scope="module")
def llama(smollm2: Path) -> LlamaModel:
    return LlamaModel(smollm2, LlamaOptions(n_ctx=256))


@pytest.mark.parametrize("width", [3, 5])
def test_a_tree_never_has_more_branches_than_the_model_keeps(llama: LlamaModel, width: int) -> None:
    draft = LlamaModel(llama.path, LlamaOptions(n_ctx=256))
    try:
        engine = Engine(llama, LlamaTokenizer(llama.handle), ModelDrafter(draft), Fixed(8, width))
        assert 8 * (width - 1) + 1 > llama.caps.max_leaves
        r = engine.generate("One, two, three, four,", max_tokens=12, ignore_end=True)
        assert r.stats.verified > r.stats.accepted > 0
    finally:
        draft.close()


def test_an_interrupt_after_the_first_forward_does_not_poison_the_slot(llama: LlamaModel) -> None:
    engine = Engine(llama, LlamaTokenizer(llama.handle), SuffixDrafter(1), Fixed(4))
    right = engine.generate("One, two, three,", max_tokens=8)
    real = llama._low.llama_decode

    def interrupted(*args: object) -> int:
        llama._low.llama_decode = real
        real(*args)
        raise KeyboardInterrupt

    for at_first in (True, False):
        llama._low.llama_decode = interrupted
        stream = engine.stream("One, two, three,", max_tokens=8)
        if not at_first:
            llama._low.llama_decode = real
            next(stream)
            llama._low.llama_decode = interrupted
        with pytest.raises(KeyboardInterrupt):
            list(stream)
        assert engine.generate("One, two, three,", max_tokens=8).ids == right.ids


@pytest.mark.parametrize("where", ["target", "draft"])
def test_an_interrupt_leaves_a_usable_engine(where: str) -> None:
    target, draft = Interrupted(TABLE, N), Interrupted(TABLE, N)
    engine = Engine(target, toy_engine(TABLE, N).tokenizer, ModelDrafter(draft), Fixed(3))
    right = engine.generate([1, 2, 3], max_tokens=20)
    for after in range(4):
        stream = engine.stream([1, 2, 3], max_tokens=20)
        for _ in range(after):
            next(stream)
        (target if where == "target" else draft).armed = True
        with pytest.raises(KeyboardInterrupt):
            list(stream)
        assert engine.generate([1, 2, 3], max_tokens=20).ids == right.ids


def test_a_failing_drafter_frees_its_slot() -> None:
    class Fails(Base):
        name = "fails"

        def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
            raise RuntimeError("a bug in a plug-in")

        def end(self, slot: int) -> None:
            super().end(slot)
            raise RuntimeError("and another")

    engine = toy_engine(TABLE, N, Fails())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a bug in a plug-in"):
            engine.generate([1, 2], max_tokens=5)
    assert engine.model.n_past(0) == 0


def test_two_streams_read_in_turn_lose_nothing() -> None:
    engine = toy_engine(TABLE, N, "suffix", n_slots=2)
    alone = [engine.generate(p, max_tokens=30).text for p in ([1, 2], [3, 4, 5])]
    streams = [engine.stream(p, max_tokens=30) for p in ([1, 2], [3, 4, 5])]
    texts = ["", ""]
    for turn in range(200):
        i = (turn // 3) % 2
        chunk = next(streams[i], None)
        texts[i] += chunk.text if chunk else ""
    assert texts == alone


def test_a_closed_engine_refuses() -> None:
    engine = toy_engine(TABLE, N)
    with engine:
        engine.generate([1], max_tokens=2)
    for ask in (lambda: engine.generate([1]), engine.reset, engine.step):
        with pytest.raises(UsageError, match="closed"):
            ask()
