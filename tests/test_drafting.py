"""Who drafts, and by which policy: what a user may write, and what is refused with a word on what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import PROMPT, Always, Base, Hits, Random, markov_table, outcome, toy_engine
from slipstream import drafters
from slipstream.core.policy import Fixed, Off
from slipstream.core.ports import Drafter, Room, Source, Want
from slipstream.core.priced import MOST
from slipstream.core.types import EMPTY_DRAFT, Draft
from slipstream.drafters.predicted import PredictedDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.drafting import Drafting
from slipstream.engine import Engine
from slipstream.errors import InputError, SlipstreamError, UnknownName
from slipstream.opening import FIXED_K, OpenOptions

N = 8
TABLE = markov_table(N, seed=4)


# -- Drafting.of ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "names", "model", "label"),
    [
        (None, (), None, "none"),
        ("none", (), None, "none"),
        ("", (), None, "none"),
        ([], (), None, "none"),
        ("suffix", ("suffix",), None, "suffix"),
        ("suffix,recycle", ("suffix", "recycle"), None, "suffix+recycle"),
        (" recycle , suffix, ", ("recycle", "suffix"), None, "recycle+suffix"),
        (["suffix", "predicted"], ("suffix", "predicted"), None, "suffix+predicted"),
        ("suffix,qwen2.5-coder-0.5b", ("suffix",), "qwen2.5-coder-0.5b", "suffix+model"),
        ("some/file.gguf", (), "some/file.gguf", "model"),
        (("x.gguf", "suffix"), ("suffix",), "x.gguf", "suffix+model"),
    ],
)
def test_what_may_be_written(draft: Any, names: tuple[str, ...], model: str | None, label: str) -> None:
    d = Drafting.of(draft)
    assert (d.names, d.model, d.given, d.label) == (names, model, (), label)
    assert d.any == (label != "none") and [c.name for c in d.create(weighed=False)] == list(names)


def test_objects_stand_alone_or_beside_names() -> None:
    mine, other = Always(1), SuffixDrafter()
    assert Drafting.of(mine).given == (mine,) and Drafting.of(mine).create(weighed=True) == [mine]
    d = Drafting.of(["recycle", mine, "model.gguf", other])
    assert (d.names, d.model, d.given) == (("recycle",), "model.gguf", (mine, other))
    assert d.label == "recycle+model+always+suffix" and [x.name for x in d.create(weighed=True)] == [
        "recycle",
        "always",
        "suffix",
    ]


@pytest.mark.parametrize(
    ("draft", "message", "hint"),
    [
        ("a.gguf,b.gguf", "two draft models: a.gguf and b.gguf", "name one"),
        ("sufix,qwen2.5-coder-0.5b", "two draft models: sufix and", "suffix"),
        ("suffix,suffix", "suffix is named twice", "once"),
        (["recycle", "suffix", "recycle"], "recycle is named twice", "once"),
        ("none,suffix", "none stands alone", "leave out"),
        (["none", Always(1)], "none stands alone", "leave out"),
    ],
)
def test_what_is_refused(draft: Any, message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Drafting.of(draft)
    assert hint in caught.value.hint


def test_two_models_are_told_of_the_drafters_that_need_none() -> None:
    with pytest.raises(InputError) as caught:
        Drafting.of("a,b")
    assert all(name in caught.value.hint for name in drafters.names())


def test_a_file_whose_name_has_a_comma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small,q4.gguf"
    file.write_bytes(b"")
    assert Drafting.of(str(file)).model == str(file)
    monkeypatch.chdir(tmp_path)
    assert Drafting.of("small,q4.gguf").model == "small,q4.gguf"
    assert Drafting.of(["suffix", "small,q4.gguf"]).model == "small,q4.gguf"  # in a sequence nothing is split


def test_a_file_that_is_called_like_a_drafter_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suffix").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Drafting.of("suffix").names == ("suffix",)


# -- settings that do not go together ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 4, "policy": "priced"}, "k is the draft length of the fixed policy"),
        ({"k": 4, "policy": "off"}, "k is the draft length of the fixed policy"),
        ({"k": 4, "policy": Fixed(2)}, "k is the draft length of the fixed policy"),
        ({"save_corpus": "x.npz"}, "no corpus to save"),
        ({"width": 0}, "width is 0"),
        ({"n_slots": 0}, "n_slots is 0"),
    ],
)
def test_conflicts_are_found_before_anything_is_looked_for(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Engine.open("no-such-model", **options)
    assert caught.value.hint
    with pytest.raises(InputError, match=message):
        OpenOptions(**options)


@pytest.mark.parametrize(("word", "nearest"), [("pricd", "priced"), ("fixd", "fixed"), ("of", "off")])
def test_an_unknown_policy_is_told_the_nearest(word: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=word) as caught:
        Engine.open("no-such-model", policy=word)
    assert nearest in caught.value.hint


def test_drafters_are_checked_before_the_target() -> None:
    with pytest.raises(InputError, match="two draft models"):
        Engine.open("no-such-model", draft="a,b")


@pytest.mark.parametrize(
    ("options", "drafting", "kind", "k"),
    [
        ({}, True, None, None),
        ({"policy": "priced"}, True, None, None),
        ({"policy": "fixed"}, True, Fixed, FIXED_K),
        ({"k": 6}, True, Fixed, 6),
        ({"k": 6, "policy": "fixed"}, True, Fixed, 6),
        ({"k": 0}, True, Off, 0),
        ({"policy": "off"}, True, Off, 0),
        ({}, False, Off, 0),
        ({"policy": "priced"}, False, Off, 0),
        ({"k": 6}, False, Off, 0),
    ],
)
def test_which_policy_it_is(options: dict[str, Any], drafting: bool, kind: type | None, k: int | None) -> None:
    policy = OpenOptions(**options).fixed_policy(drafting)
    assert policy is None if kind is None else type(policy) is kind
    assert policy is None or policy.most.depth == k


def test_a_policy_as_an_object_is_taken_as_it_is() -> None:
    mine = Fixed(3)
    assert OpenOptions(policy=mine).fixed_policy(True) is mine and OpenOptions(policy=mine).fixed_policy(False) is mine


def test_what_the_priced_policy_may_ask_for() -> None:
    assert OpenOptions().most() == MOST and OpenOptions(width=3).most().width == 3
    assert OpenOptions(verify="block").most().width == 1 and OpenOptions(verify="rejection").most().width == MOST.width
    with pytest.raises(SlipstreamError, match="block"):
        Engine.open("no-such-model", verify="block", width=2)


# -- the prediction ---------------------------------------------------------------------------------------------------


def test_a_prediction_reaches_the_drafter_and_not_the_text() -> None:
    plain = toy_engine(TABLE, N).generate(PROMPT, max_tokens=40)
    for prediction in (list(plain.ids), plain.text):
        engine = toy_engine(TABLE, N, PredictedDrafter(), 4)
        told = engine.generate(PROMPT, max_tokens=40, prediction=prediction)
        assert outcome(told) == outcome(plain) and told.notes == ()
        assert told.stats.accepted > 25 and told.stats.acceptance_rate == 1.0
        again = engine.generate(PROMPT, max_tokens=40)  # it was for that one request
        assert outcome(again) == outcome(plain) and again.stats.proposed == 0
    wrong = toy_engine(TABLE, N, PredictedDrafter(), 4).generate(PROMPT, max_tokens=40, prediction=[7] * 40)
    assert outcome(wrong) == outcome(plain)


@pytest.mark.parametrize("drafter", [None, "suffix"])
def test_a_prediction_that_nobody_takes_is_noted(drafter: str | None) -> None:
    note = "the prediction was not used"
    engine = toy_engine(TABLE, N, drafter)
    assert any(note in n and "predicted" in n for n in engine.generate(PROMPT, max_tokens=4, prediction="ab").notes)
    assert not any(note in n for n in engine.generate(PROMPT, max_tokens=4).notes)


# -- several drafters with a fixed length -----------------------------------------------------------------------------


class Costly(Base):
    """Never says anything; hears in which order it is asked."""

    name, costly = "costly", True

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked = asked

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        self.asked.append(self.name)
        return EMPTY_DRAFT


class Cheap(Costly):
    name, costly = "cheap", False


def test_costly_drafters_are_asked_last() -> None:
    asked: list[str] = []
    toy_engine(TABLE, N, [Costly(asked), Cheap(asked)]).generate(PROMPT, max_tokens=5)  # type: ignore[arg-type]
    assert asked and asked == ["cheap", "costly"] * (len(asked) // 2)


@pytest.mark.parametrize("width", [1, 3])
def test_several_drafters_feed_one_draft(width: int) -> None:
    plain = toy_engine(TABLE, N).generate(PROMPT, max_tokens=60)
    mixed: list[Drafter] = [Random(N, seed=1), Hits(TABLE, N, [1000]), SuffixDrafter(1)]
    r = toy_engine(TABLE, N, mixed, 4, width).generate(PROMPT, max_tokens=60)  # type: ignore[arg-type]
    assert outcome(r) == outcome(plain) and r.stats.proposed > r.stats.verified > 0
    assert max(len(s) for s in (r.stats.accepted_per_position, r.stats.verified_per_position)) <= 4


def test_fixed_keeps_to_its_most_whoever_offers() -> None:
    room = Room(0, 10, left=3, most=5, leaves=4, n_vocab=N)
    offers = [Draft.chain([1, 2, 3, 4, 5], "a", prob=[0.9] * 5), Draft.chain([1, 6, 7, 0, 2], "b", prob=[0.8] * 5)]
    policy = Fixed(4, 2)
    assert policy.want(room, Source("a"), []) == Want(8, 4, 2)
    draft = policy.choose([room], [offers])[0].draft
    assert len(draft) <= 5 and max(draft.depths()) == 3 and set(draft.origin) == {"a", "b"}
    assert draft.spine().tokens == (1, 2, 3) and draft.tokens[:3] == (1, 2, 3)  # the likeliest path lies together
    chain = Fixed(4).choose([room], [offers])[0].draft
    assert chain.tokens == (1, 2, 3) and chain.is_chain
    assert Fixed(4).choose([room], [[EMPTY_DRAFT, EMPTY_DRAFT]])[0].draft is EMPTY_DRAFT


def test_unlikely_guesses_are_offered_only_to_a_policy_that_weighs_them() -> None:
    for weighed, least in ((True, 1), (False, 2)):
        drafter = Drafting.of("suffix").create(weighed)[0]
        assert isinstance(drafter, SuffixDrafter) and drafter.min_match == least
