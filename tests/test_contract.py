"""What every Model must do: one suite for the toy models and for GGUF models through llama.cpp.

Toy rows are compared for equality. On a real model, one token at a time and several at once differ by rounding
(DESIGN.md), which shows most in the unlikeliest of 100,000 and more logits. So rows are compared by the root mean
square of their difference (a shift of all logits means nothing and is taken off first), and by their largest logit,
which must be the same or lie in a near-tie. The bounds lie between two things measured on this build: other splits
of the same tokens over forwards, with nothing rejected, give up to 0.3 (Gemma 3 270M: 0.4, and 0.65 with two slots
in a batch); one wrong, missing or stray token in a past as short as here gives 0.7 and more (Gemma: 1.3 and more).
`test_the_bound_can_fail` checks that for each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from helpers import markov_table
from slipstream.core.ports import Model
from slipstream.core.types import Array, Span
from slipstream.errors import RollbackError, UsageError
from slipstream.hub import resolve
from slipstream.models.toy import ToyModel

TIE = 1.0  # in logits, as the bounds of a rig


@dataclass
class Rig:
    """A model: slots 0 and 1 are for a test, slot 2 for the reference; `words` are tokens with some meaning."""

    model: Model
    words: Sequence[int]
    exact: bool
    bound: float = 0.5

    def feed(self, slot: int, tokens: Sequence[int]) -> Array:
        """Rows of `tokens` appended one at a time."""
        rows = []
        for token in tokens:
            rows.append(self.model.forward([Span(slot, [token], [-1], [0])])[0][0].copy())
            self.model.keep(slot, [0])
        return np.stack(rows)

    def fresh(self, tokens: Sequence[int]) -> Array:
        self.model.truncate(2, 0)
        return self.feed(2, tokens)

    def same(self, rows: Array, expected: Array) -> None:
        assert rows.shape == expected.shape and rows.dtype == np.float32
        if self.exact:
            assert (rows == expected).all()
            return
        for row, right in zip(rows, expected, strict=True):
            assert distance(row, right) <= self.bound
            assert right.max() - right[row.argmax()] < TIE


def distance(row: Array, right: Array) -> float:
    off = row.astype(np.float64) - right
    return float(np.sqrt(((off - off.mean()) ** 2).mean()))


def chain(slot: int, tokens: Sequence[int], want: Sequence[int] | None = None) -> Span:
    n = len(tokens)
    return Span(slot, tokens, range(-1, n - 1), range(n) if want is None else want)


def _toy(**kw: object) -> Callable[[Path], Rig]:
    def make(_: Path) -> Rig:
        # The last eight tokens decide, so that a wrong one among them shows.
        model = ToyModel(markov_table(50, order=8), 50, n_ctx=64, n_slots=3, **kw)  # type: ignore[arg-type]
        return Rig(model, [5, 9, 30, 7, 7, 12, 41, 3, 22, 18, 2, 33], True)

    return make


def _llama(path: Path) -> Rig:
    from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions
    from slipstream.models.llamacpp.tokenizer import LlamaTokenizer

    model = LlamaModel(path, LlamaOptions(n_ctx=128, n_slots=3, n_batch=64))
    words = LlamaTokenizer(model.handle).encode(
        "The quick brown fox jumps over the lazy dog and then sleeps in the warm sun"
    )
    return Rig(model, words[:12], False, 0.8 if "gemma" in path.name else 0.5)


MODELS = {"toy": _toy(), "toy recurrent": _toy(recurrent=True)}
LARGE = ["qwen2.5-coder-0.5b", "gemma-3-270m"]


@pytest.fixture(
    scope="module",
    params=[*MODELS, "smollm2-135m", *(pytest.param(name, marks=pytest.mark.large) for name in LARGE)],
)
def opened(request: pytest.FixtureRequest) -> Iterator[Rig]:
    name = request.param
    rig = MODELS[name](Path()) if name in MODELS else _llama(resolve(name))
    yield rig
    rig.model.close()


@pytest.fixture
def rig(opened: Rig) -> Rig:
    for slot in range(3):
        opened.model.truncate(slot, 0)
    return opened


def test_caps_say_what_is_there(rig: Rig) -> None:
    caps = rig.model.caps
    assert caps.n_slots == 3 and caps.n_ctx in (64, 128) and caps.n_batch == 64
    assert rig.fresh(rig.words[:1]).shape == (1, caps.n_vocab)
    assert caps.trees == (caps.max_leaves > 1) or caps.rollback != "free"
    assert isinstance(rig.model, Model)


def test_the_bound_can_fail(rig: Rig) -> None:
    """One token wrong, missing or too many in the past, and the rows are told apart."""
    past, after = rig.words[:5], rig.words[5]
    right = rig.fresh([*past, after])[-1]
    strays = ([*past, rig.words[9]], past[:-1], [*past[:-1], rig.words[9]], [past[0], rig.words[9], *past[2:]])
    assert all(distance(rig.fresh([*wrong, after])[-1], right) > 1.2 * rig.bound for wrong in strays)


def test_rows_of_a_chain_equal_one_token_at_a_time(rig: Rig) -> None:
    words = rig.words
    rows = rig.model.forward([chain(0, words)])[0].copy()
    rig.model.keep(0, range(len(words)))
    assert rig.model.n_past(0) == len(words)
    rig.same(rows, rig.fresh(words))


def test_only_wanted_rows_come_in_the_order_of_the_span(rig: Rig) -> None:
    full = rig.fresh(rig.words[:6])
    rows = rig.model.forward([chain(0, rig.words[:6], [2, 5])])[0].copy()
    rig.model.keep(0, range(6))
    rig.same(rows, full[[2, 5]])
    none = rig.model.forward([chain(0, rig.words[6:8], [])])
    rig.model.keep(0, range(2))
    assert none[0].shape == (0, rig.model.caps.n_vocab)
    assert rig.model.n_past(0) == 8


def test_every_length_of_a_chain_can_be_kept_and_leaves_no_trace(rig: Rig) -> None:
    past, draft, after = rig.words[:5], rig.words[7:11], rig.words[5:7]
    for kept in range(5):
        rig.model.truncate(0, 0)
        rig.feed(0, past)
        rig.model.forward([chain(0, draft)])
        rig.model.keep(0, range(kept))
        assert rig.model.n_past(0) == 5 + kept
        rig.same(rig.feed(0, after), rig.fresh([*past, *draft[:kept], *after])[-2:])


# A tree with three leaves; the likeliest path first, and one node that is no leaf's only way.
#        0
#      / | \
#     1  4  6
#    2 3 5
TREE = ((-1, 0, 1, 1, 0, 4, 0), [[], [0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 4], [0, 4, 5], [0, 6]])


def tree(rig: Rig, slot: int) -> Span:
    tokens = [rig.words[i] for i in (5, 6, 7, 8, 9, 10, 11)]
    return Span(slot, tokens, TREE[0], range(7))


def need_trees(rig: Rig) -> None:
    if not rig.model.caps.trees:
        pytest.skip("chains only")


def test_rows_of_a_tree_equal_each_path_on_its_own(rig: Rig) -> None:
    need_trees(rig)
    past = rig.words[:5]
    rig.feed(0, past)
    span = tree(rig, 0)
    rows = rig.model.forward([span])[0].copy()
    rig.model.keep(0, [])
    for path in TREE[1][1:]:
        words = [span.tokens[i] for i in path]
        rig.same(rows[path[-1:]], rig.fresh([*past, *words])[-1:])


def test_every_path_of_a_tree_can_be_kept_and_the_rest_leaves_no_trace(rig: Rig) -> None:
    need_trees(rig)
    past, after = rig.words[:5], rig.words[3:6]
    for path in TREE[1]:
        rig.model.truncate(0, 0)
        rig.feed(0, past)
        span = tree(rig, 0)
        rig.model.forward([span])
        rig.model.keep(0, path)
        assert rig.model.n_past(0) == 5 + len(path)
        words = [span.tokens[i] for i in path]
        rig.same(rig.feed(0, after), rig.fresh([*past, *words, *after])[-3:])


def test_forests_and_several_trees_one_after_another(rig: Rig) -> None:
    """Roots side by side, as with siblings at the first position; twice, so that branch ids are used again."""
    need_trees(rig)
    past = list(rig.words[:4])
    rig.feed(0, past)
    for first in (4, 6):
        a, b, c, d = rig.words[first], rig.words[first + 1], rig.words[first + 2], rig.words[first + 3]
        rows = rig.model.forward([Span(0, [a, b, c, d], [-1, -1, -1, 1], range(4))])[0].copy()
        rig.model.keep(0, [1, 3])
        rig.same(rows[[1, 3]], rig.fresh([*past, b, d])[-2:])
        past += [b, d]
    rig.same(rig.feed(0, rig.words[:1]), rig.fresh([*past, rig.words[0]])[-1:])


def test_only_a_path_from_the_root_can_be_kept(rig: Rig) -> None:
    if not rig.exact:
        pytest.skip("the toy checks what a real model takes on trust")
    for bad in ([1], [0, 2], [1, 0]):
        rig.model.truncate(0, 0)
        rig.model.forward([chain(0, rig.words[:3])])
        with pytest.raises(UsageError):
            rig.model.keep(0, bad)


def test_two_slots_in_one_forward_do_not_meet(rig: Rig) -> None:
    a, b = rig.words[:4], rig.words[4:9]
    ra, rb = (r.copy() for r in rig.model.forward([chain(0, a), chain(1, b)]))
    rig.model.keep(0, range(2))  # two of the four are rejected
    rig.model.keep(1, range(5))
    rig.same(ra, rig.fresh(a))
    rig.same(rb, rig.fresh(b))
    assert (rig.model.n_past(0), rig.model.n_past(1)) == (2, 5)
    rb, ra = (r.copy() for r in rig.model.forward([chain(1, a), chain(0, b)]))
    rig.model.keep(1, range(4))
    rig.model.keep(0, range(1))
    rig.same(rb, rig.fresh([*b, *a])[-4:])
    rig.same(ra, rig.fresh([*a[:2], *b])[-5:])
    rig.model.truncate(1, 0)  # emptying one leaves the other as it is
    rig.same(rig.feed(0, a), rig.fresh([*a[:2], b[0], *a])[-4:])


def test_trees_in_two_slots_at_once(rig: Rig) -> None:
    need_trees(rig)
    rig.feed(0, rig.words[:3])
    rig.feed(1, rig.words[2:7])
    s0, s1 = tree(rig, 0), tree(rig, 1)
    r0, r1 = (r.copy() for r in rig.model.forward([s0, s1]))
    rig.model.keep(1, [0, 4, 5])
    rig.model.keep(0, [0, 1, 3])
    w0, w1 = ([s.tokens[i] for i in p] for s, p in ((s0, [0, 1, 3]), (s1, [0, 4, 5])))
    rig.same(r0[[0, 1, 3]], rig.fresh([*rig.words[:3], *w0])[-3:])
    rig.same(r1[[0, 4, 5]], rig.fresh([*rig.words[2:7], *w1])[-3:])
    rig.same(rig.feed(0, rig.words[:2]), rig.fresh([*rig.words[:3], *w0, *rig.words[:2]])[-2:])
    rig.same(rig.feed(1, rig.words[:2]), rig.fresh([*rig.words[2:7], *w1, *rig.words[:2]])[-2:])


def test_truncate_cuts_exactly_or_says_that_it_cannot(rig: Rig) -> None:
    rig.feed(0, rig.words[:8])
    if rig.model.caps.rollback == "free":
        rig.model.truncate(0, 5)
        assert rig.model.n_past(0) == 5
        rig.same(rig.feed(0, rig.words[9:11]), rig.fresh([*rig.words[:5], *rig.words[9:11]])[-2:])
    else:
        with pytest.raises(RollbackError):
            rig.model.truncate(0, 5)
        assert rig.model.n_past(0) == 8
    n = rig.model.n_past(0)
    rig.model.truncate(0, n)  # nothing to do
    assert rig.model.n_past(0) == n
    rig.model.truncate(0, 0)
    assert rig.model.n_past(0) == 0
    rig.same(rig.feed(0, rig.words[:3]), rig.fresh(rig.words[:3]))


def test_truncate_refuses_to_lengthen(rig: Rig) -> None:
    rig.feed(0, rig.words[:3])
    with pytest.raises(UsageError):
        rig.model.truncate(0, 4)
    assert rig.model.n_past(0) == 3


def test_a_forward_must_be_settled_before_the_next(rig: Rig) -> None:
    rig.model.forward([chain(0, rig.words[:2])])
    with pytest.raises(UsageError, match="keep"):
        rig.model.forward([chain(0, rig.words[2:3])])
    rig.model.keep(0, [0])
    with pytest.raises(UsageError):
        rig.model.keep(0, [0])
    assert rig.model.n_past(0) == 1


def test_a_forward_longer_than_the_batch_is_refused(rig: Rig) -> None:
    with pytest.raises(UsageError, match="n_batch"):
        rig.model.forward([chain(0, [rig.words[0]] * (rig.model.caps.n_batch + 1), [0])])


def test_a_long_draft_up_to_the_limits(rig: Rig) -> None:
    """The last token and `max_nodes` drafted ones, every row wanted, as the loop may ask."""
    n = min(rig.model.caps.max_nodes + 1, rig.model.caps.n_batch, rig.model.caps.n_ctx)
    tokens = [rig.words[i % 12] for i in range(n)]
    rows = rig.model.forward([chain(0, tokens)])[0].copy()
    rig.model.keep(0, range(3))
    assert rows.shape == (n, rig.model.caps.n_vocab)
    rig.same(rows[[0, 7, n - 1]], rig.fresh(tokens)[[0, 7, n - 1]])
    rig.same(rig.feed(0, rig.words[5:7]), rig.fresh([*tokens[:3], *rig.words[5:7]])[-2:])


def test_as_many_branches_as_promised(rig: Rig) -> None:
    need_trees(rig)
    n = min(rig.model.caps.max_leaves, 11)
    rig.feed(0, rig.words[:2])
    tokens = list(rig.words[1 : 1 + n])
    rows = rig.model.forward([Span(0, tokens, [-1] * n, range(n))])[0].copy()
    rig.model.keep(0, [n - 1])
    for i in range(n):
        rig.same(rows[i : i + 1], rig.fresh([*rig.words[:2], tokens[i]])[-1:])
    rig.same(rig.feed(0, rig.words[:1]), rig.fresh([*rig.words[:2], tokens[-1], rig.words[0]])[-1:])


# -- the toy's own promises ------------------------------------------------------------------------------------------


def test_a_recurrent_state_equals_a_replay_from_scratch() -> None:
    rng, model = np.random.default_rng(0), ToyModel(markov_table(9), 9, recurrent=True)
    for _ in range(100):
        tokens = [int(t) for t in rng.integers(0, 9, rng.integers(1, 6))]
        model.forward([chain(0, tokens)])
        model.keep(0, range(int(rng.integers(0, len(tokens) + 1))))
        fresh = ToyModel(markov_table(9), 9, recurrent=True)
        for token in model.past(0):
            fresh.forward([chain(0, [token])])
            fresh.keep(0, [0])
        assert model.state(0) == fresh.state(0)


def test_a_state_that_cannot_be_cut_says_so() -> None:
    model = ToyModel(markov_table(9), 9, recurrent=True, rollback="none")
    model.forward([chain(0, [1, 2, 3])])
    with pytest.raises(RollbackError):
        model.keep(0, [0])
    with pytest.raises(UsageError, match="recurrent"):
        ToyModel(markov_table(9), 9, recurrent=True, rollback="free")
    model = ToyModel(markov_table(9), 9, recurrent=True)
    with pytest.raises(UsageError, match="chains"):
        model.forward([Span(0, [1, 2], [-1, -1], [0])])
