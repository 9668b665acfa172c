"""Grammars: what they allow is what a schema allows, whatever was asked of them before."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.ports import Constraint
from slipstream.errors import InputError
from slipstream.models.toy import ToyTokenizer
from slipstream.text import grammar
from slipstream.text.grammar import Grammars

END, CONTROL = 256, 257
BYTES = ToyTokenizer([*(bytes([i]) for i in range(256)), b"</s>", b"", b'{"', b'":', b'"}'], (END,))
N = 261
FLAT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "$defs": {"node": {"type": "object", "properties": {"v": {"type": "number"}, "next": {"$ref": "#/$defs/node"}}}},
    "type": "array",
    "items": {"$ref": "#/$defs/node"},
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(BYTES, N)


def feed(c: Constraint, text: str) -> Constraint:
    for token in text.encode():
        assert c.allowed()[token], (text, token)
        c.append(token)
    return c


def options(c: Constraint, *path: int) -> set[int]:
    return set(np.flatnonzero(c.allowed(path)).tolist())


def walk(c: Constraint, seed: int, most: int = 400) -> bytes:
    """A random text that the constraint allows, to its end; plain ASCII where there is a choice."""
    rng, out = np.random.default_rng(seed), b""
    for _ in range(most):
        left = sorted(options(c))
        if c.done or (END in left and rng.random() < 0.5):
            return out
        usual = [t for t in left if t < 128 or t > END] or [t for t in left if t != END]
        closing = [t for t in usual if BYTES.piece(t)[:1] in b'"}]' and len(out) > 60]
        token = int(rng.choice(closing or usual))
        c.append(token)
        out += BYTES.piece(token)
    return b""


# -- what is allowed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"a":1,"b":"x"}', '{"a": -12, "b": "y"}', '{\n  "a": 0,\n  "b": "x"\n}'])
def test_compact_spaced_and_indented_json_can_be_said(grammars: Grammars, text: str) -> None:
    c = feed(grammars.json_schema(FLAT), text)
    assert c.done and options(c) == {END} and not c.failure and json.loads(text)["b"] in "xy"


@pytest.mark.parametrize("text", ['{  "', '{"a":1 }  ', '{"a":01', '{"a":1,"b":"z', '{"c', " {", '{"a":1,"b":"x"} '])
def test_other_text_cannot_be_said(grammars: Grammars, text: str) -> None:
    assert grammars.json_schema(FLAT).valid(text.encode()) < len(text)


def test_whitespace_is_bounded(grammars: Grammars) -> None:
    for space in (" ", "\n", "\t", "\n \t", "\n" + " " * 40):
        assert grammars.json_object().valid(("{" + space * 30).encode()) <= 1 + 33


def test_control_tokens_are_never_allowed_and_end_tokens_only_at_an_end(grammars: Grammars) -> None:
    c = grammars.json_schema(True)
    for token in b'"any text':
        assert options(c).isdisjoint({END, CONTROL})
        c.append(token)
    c.append(ord('"'))
    assert options(c) == {END} and c.done


def test_every_end_token_ends() -> None:
    c = Grammars(ToyTokenizer([b"{", b"}", b"", b"</s>", b"<eot>", b'"'], (3, 4)), 6).json_object()
    c.append(0)
    assert options(c) == {1, 5}
    c.append(1)
    assert options(c) == {3, 4} and c.done


def test_without_an_end_token_the_sequence_still_learns_that_it_is_over() -> None:
    c = Grammars(ToyTokenizer([b"{", b"}", b"x", b'"']), 5).json_object()  # five rows: the last has no token
    assert options(c) == {0}
    c.append(0)
    assert options(c) == {1, 3} and not c.done
    c.append(1)
    assert c.done and c.allowed().any() and c.allowed().shape == (5,)


def test_a_number_may_go_on_or_end(grammars: Grammars) -> None:
    c = feed(grammars.json_schema({"type": "integer"}), "12")
    assert not c.done and END in options(c) and ord("3") in options(c)
    c.append(END)
    assert ord("3") in options(c), "an end token changes nothing"
    c.take_back(2)
    assert c.valid(b"7") == 1 and c.valid([ord("7"), END, ord("7")]) == 2


@pytest.mark.parametrize("schema", [FLAT, TREE, {"type": "object"}, {"enum": ["a", 1, None, [True]]}])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_allowed_is_json(grammars: Grammars, schema: dict[str, Any], seed: int) -> None:
    text = walk(grammars.json_schema(schema), seed)
    if text:
        json.loads(text)


def test_a_lark_grammar(grammars: Grammars) -> None:
    c = grammars.lark('start: "<call>" %json {"type": "object"} "</call>"')
    assert bytes(c.forced()) == b"<call>"
    assert c.valid(b'<call>{"a": [1]}</call>') == 23 and c.valid(b"<call>{  ") == 8
    strict = grammars.lark('start: %json {"type": "array", "x-guidance": {"whitespace_flexible": false}}')
    assert strict.valid(b"[1,2]") == 5 and strict.valid(b"[1, 2]") == 3


# -- forced tokens ---------------------------------------------------------------------------------------------------


def test_forced_tokens_are_the_only_text_in_its_usual_tokens(grammars: Grammars) -> None:
    long = {"type": "object", "properties": {"temperature": {"const": "warm"}}, "required": ["temperature"]}
    c = grammars.json_schema({**long, "additionalProperties": False})
    assert c.forced() == (), 'both { and {" may come'
    c.append(258)  # {"
    said = b"".join(map(BYTES.piece, c.forced()))
    assert said.startswith(b"temperature") and c.valid(c.forced()) == len(c.forced())
    path = [*b'temperature":']
    assert c.forced(path) == () and bytes(c.forced([*path, ord('"')])).startswith(b"warm")
    assert c.forced([0]) == (), "nothing is forced behind what cannot stand there"


def test_a_tokenizer_that_cannot_encode_a_text_is_no_obstacle() -> None:
    tokenizer = ToyTokenizer([b"{", b"}", b'"', b"na", b"me", b":", b"1", b"n", b"a", b"m", b"e"], ())
    c = Grammars(tokenizer, 11).json_schema(
        {
            "type": "object",
            "properties": {"name": {"const": 1}},
            "required": ["name"],
            "additionalProperties": False,
        }
    )
    c.append(0)
    assert 2 in options(c)
    c.append(2)
    tokens = list(c.forced())
    assert tokens[:1] == [3] and c.valid(tokens) == len(tokens)


def test_a_text_that_the_vocabulary_cannot_say_fails_by_itself() -> None:
    tokenizer = ToyTokenizer([b'"', b"a", b"</s>"], (2,))
    with pytest.raises(InputError, match="no text satisfies"):
        Grammars(tokenizer, 3).json_object()
    c = Grammars(tokenizer, 3).json_schema({"enum": ["ab"]})
    c.append(0)
    c.append(1)
    assert options(c) == {2} and c.done and c.failure
    c.take_back(1)
    assert not c.done and not c.failure and options(c) == {1}


# -- asking leaves no trace ------------------------------------------------------------------------------------------

JSON_BYTES = b'{"a": 12, "b": "x"}[],.ab\n'


@given(st.data())
def test_any_history_of_questions_gives_the_same_answers_as_a_fresh_start(data: st.DataObject) -> None:
    """Against a constraint that has only ever been told the committed tokens."""
    made = Grammars(BYTES, N)
    schema = data.draw(st.sampled_from([FLAT, TREE, {"type": "object"}, {"type": "integer"}, {"type": "string"}]))
    subject, said = made.json_schema(schema), list[int]()
    token = st.one_of(st.sampled_from(JSON_BYTES), st.sampled_from([END, CONTROL, 258, 259, 260, -1, N, 10**6]))
    for _ in range(data.draw(st.integers(1, 14))):
        what = data.draw(st.sampled_from(["append", "append", "append", "allowed", "valid", "forced", "back", "fork"]))
        path = data.draw(st.lists(token, max_size=6))
        if what == "append" and (left := sorted(options(subject))):
            said.append(data.draw(st.sampled_from(left)))
            subject.append(said[-1])
        elif what == "back":
            n = data.draw(st.integers(0, len(said)))
            subject.take_back(n)
            del said[len(said) - n :]
        elif what == "fork":
            other = subject
            subject = subject.fork()
            for t in path:  # what happens to the other one is nothing to this one
                other.append(t)
        elif what == "allowed":
            subject.allowed(path)
        elif what == "valid":
            n = subject.valid(path)
            assert 0 <= n <= len(path)
            for i in range(n):
                assert subject.allowed(path[:i])[path[i]]
        else:
            subject.forced(path)
        fresh = made.json_schema(schema)
        for t in said:
            fresh.append(t)
        assert options(subject) == options(fresh) and subject.done == fresh.done and subject.failure == fresh.failure
        assert list(subject.forced()) == list(fresh.forced())


def test_a_draft_is_walked_once_not_once_for_each_of_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    eaten: list[int] = []

    class Counted:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def deep_copy(self) -> Counted:
            return Counted(self.inner.deep_copy())

        def try_consume_tokens(self, tokens: list[int]) -> int:
            eaten.extend(tokens)
            return int(self.inner.try_consume_tokens(tokens))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    make = grammar.Compiled._make
    monkeypatch.setattr(grammar.Compiled, "_make", lambda self: Counted(make(self)))
    c = Grammars(BYTES, N).json_schema({"type": "string"})
    text = list(b'"' + b"a" * 200)
    for i in range(len(text)):
        c.allowed(text[:i])
    assert len(eaten) == len(text) - 1
    for token in text:
        c.append(token)
    assert len(eaten) == len(text)


# -- what cannot be compiled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "items": {"uniqueItems": True}}, "uniqueItems"),
        ({"type": "object", "if": {}, "then": {}}, "if"),
        ({"type": "strin"}, "strin"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "string", "format": "no-such-format"}, "no-such-format"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"$ref": "https://example.org/schema.json"}, "example.org"),
        ({"$ref": "#"}, "no text satisfies"),
        ({"enum": []}, "empty"),
        ({"type": "object", "propertis": {}}, "propertis"),
        ({"properties": {"a": {"type": "string", "nullable": True}}}, "nullable"),
        ({"type": "object", "uniqueItems": True, "x-guidance": {"lenient": True}}, "x-guidance"),
        ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}, "multipleOf"),
        ({"type": "integer", "multipleOf": 123456789}, "multipleOf"),
        (False, "false"),
        ({"const": float("nan")}, "not JSON"),
        ([], "neither"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(grammars: Grammars, schema: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as e:
        grammars.json_schema(schema)
    assert e.value.hint


def test_names_of_properties_are_not_taken_for_keywords(grammars: Grammars) -> None:
    odd = {"type": "object", "properties": {"nullable": {}, "requird": {}, "multipleOf": {"type": "string"}, "not": {}}}
    assert grammars.json_schema(odd).valid(b'{"not":1') == 8
    grammars.json_schema({"type": "string", "title": "t", "x-order": 1, "examples": ["a"], "default": "b"})


def test_a_schema_nested_too_deep_is_an_input_error(grammars: Grammars) -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InputError, match="deep"):
        grammars.json_schema(deep)
    with pytest.raises(InputError):
        grammars.json_schema({"const": json.loads("[" * 900 + "]" * 900)})


def test_a_bad_lark_grammar_and_bad_schemas_in_one(grammars: Grammars) -> None:
    for text in (
        "start: nowhere",
        "start: %json {",
        'start: %json {"not": {}}',
        'start: %json {"type": "integer", "multipleOf": 99999999, "x-guidance": {"lenient": true}}',
        "x" * 2_000_000,
    ):
        with pytest.raises(InputError):
            grammars.lark(text)
    lenient = grammars.lark('start: %json {"type": "object", "not": {}, "x-guidance": {"lenient": true}}')
    assert lenient.valid(b"{}") == 2


def test_a_grammar_that_explodes_while_it_runs_says_so_and_hurts_nobody(grammars: Grammars) -> None:
    c = grammars.json_schema({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"})
    other = grammars.json_schema({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"})
    feed(other, '"aaa')
    n = 0
    while not c.failure and n < 4000:
        token = ord('"') if n == 0 else ord("a")
        c.append(token)
        assert c.allowed().any()
        n += 1
    assert c.failure and c.done and options(c) == {END} and n > 10
    c.take_back(n - 20)
    assert not c.failure and not c.done and ord("a") in options(c)
    assert not other.failure and ord("a") in options(other)


# -- many at once ----------------------------------------------------------------------------------------------------


def test_compiled_grammars_are_kept_and_not_for_ever() -> None:
    made, compiled = Grammars(BYTES, N), list[str]()
    compile_ = made._compile
    made._compile = lambda text, read: compiled.append(text) or compile_(text, read)  # type: ignore[method-assign,func-returns-value]
    a, b = made.json_schema(FLAT), made.json_schema(dict(FLAT))
    assert len(compiled) == 1
    a.append(ord("{"))
    assert options(b) == options(made.json_schema(FLAT)) != options(a)
    for i in range(grammar._CACHED + 5):
        made.json_schema({"const": i})
    assert len(made._compiled) == grammar._CACHED
    made.json_schema(FLAT)
    assert compiled.count(json.dumps(FLAT)) == 2


def test_any_thread_may_compile() -> None:
    made, found = Grammars(BYTES, N), list[int]()

    def work(i: int) -> None:
        c = made.json_schema({"type": "object", "properties": {f"p{i % 5}": {"type": "integer"}}})
        found.append(c.valid(f'{{"p{i % 5}": 1}}'.encode()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert found == [9] * 20
