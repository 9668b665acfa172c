"""Grammars that an answer must keep to: JSON schemas and Lark grammars, compiled by llguidance for a model's tokens."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from slipstream.core.ports import Constraint
from slipstream.errors import InputError
from slipstream.text.schema import check
from slipstream.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Mask = npt.NDArray[np.bool_]
# Between two parts of JSON: nothing, a space, or a new line and its indentation; without bounds some models never stop.
WHITESPACE = r" |\n( {0,32}|\t{0,8})"
_OPTIONS: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": WHITESPACE,
    "coerce_one_of": False,
    "lenient": False,
}
_CACHED = 32  # compiled grammars
_LONGEST = 1_000_000  # characters of a grammar
# A step of a few milliseconds at worst; a grammar that needs more fails instead of holding up everybody.
_LIMITS = LLParserLimits(
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
HINT = "leave out what is not supported, and check it in the answer"
_FORCED = 64  # tokens: no more are looked for at once
_MARK = "\x02"  # stands before a text whose tokens are asked for, so that it is not the beginning of one


class Grammars:
    """Compiles for one tokenizer; `n_vocab`: rows of the model. Made in the tokenizer's own thread, used from any.

    Each method returns a constraint of its own at the start of the grammar. Raises InputError, with the compiler's
    reason, for what cannot be compiled: keywords that are not supported are never passed over.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._vocab = Vocabulary(tokenizer, n_vocab)
        self._compiled: OrderedDict[str, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def json_schema(self, schema: Mapping[str, Any] | bool) -> Constraint:
        """JSON that the schema allows; `True` allows any."""
        if schema is False:
            raise InputError("the schema is false, which nothing satisfies", "give a schema that something satisfies")
        if schema is not True and not isinstance(schema, Mapping):
            raise InputError("the schema is neither an object nor a boolean", "give a JSON schema")
        whole = {} if schema is True else schema
        check(whole)
        try:
            text = json.dumps(whole, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as e:
            raise InputError(f"the schema is not JSON: {e}", "give a JSON schema") from None
        return self._constraint(text, _from_schema)

    def json_object(self) -> Constraint:
        """Any JSON object."""
        return self.json_schema({"type": "object"})

    def lark(self, text: str) -> Constraint:
        """A grammar in llguidance's Lark syntax; a schema in it (`%json {...}`) may bring an `x-guidance`."""
        return self._constraint(_with_schemas_checked(text), LLMatcher.grammar_from_lark)

    def _constraint(self, text: str, read: Callable[[str], str]) -> Constraint:
        if len(text) > _LONGEST:
            raise InputError(f"the grammar has {len(text)} characters", f"at most {_LONGEST} are compiled")
        key = f"{read.__name__}:{text}"
        with self._lock:
            made = self._compiled.get(key)
        made = made or self._compile(text, read)
        with self._lock:
            self._compiled[key] = made
            self._compiled.move_to_end(key)
            while len(self._compiled) > _CACHED:
                self._compiled.popitem(last=False)
        return Matching(self._vocab, made)

    def _compile(self, text: str, read: Callable[[str], str]) -> Compiled:
        """Raises InputError also for a grammar that nothing satisfies, or nothing that these tokens can say."""
        try:
            made = Compiled(self._vocab, read(text))
        except ValueError as e:
            raise InputError(f"the grammar cannot be compiled: {e}", HINT) from None
        matcher = made.shared
        if matcher.is_error():
            raise InputError(f"the grammar cannot be compiled: {_reason(matcher)}", HINT)
        first = Matching(self._vocab, made)
        first.allowed()
        if first.failure:
            raise InputError(f"no text satisfies the grammar: {first.failure}", HINT)
        return made


class Compiled:
    """A grammar at its start. Copies share what they find out, for speed, and with it a bound on how much that is."""

    def __init__(self, vocab: Vocabulary, grammar: str) -> None:
        self._vocab, self._grammar = vocab, grammar
        self.shared = self._make()

    def _make(self) -> LLMatcher:
        return LLMatcher(self._vocab.inner, self._grammar, log_level=0, limits=_LIMITS)

    def renew(self) -> None:
        """From here on copies share nothing with those before: others may have used up what they shared."""
        self.shared = self._make()


class Vocabulary:
    """A tokenizer as llguidance wants it. Control tokens are in no text; any end token ends one."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self.ends = frozenset(t for t in tokenizer.ends if t < n_vocab)
        pieces = [_piece(tokenizer, i) for i in range(n_vocab)]
        self.said = np.array([bool(p) and i not in self.ends for i, p in enumerate(pieces)], np.bool_)
        self.end_mask: Mask = np.zeros(n_vocab, np.bool_)
        self.end_mask[list(self.ends)] = True
        if not self.ends:  # llguidance needs one, and so does a mask that must not be empty
            pieces.append(b"")
            self.end_mask[:] = True
        self.end = min(self.ends, default=n_vocab)
        self._tokenizer, self._pieces = tokenizer, pieces
        self._longest = max(map(len, pieces))
        self._ids = {p: i for i, p in reversed(list(enumerate(pieces))) if p and i not in self.ends}
        # What TokenizerWrapper asks for.
        self.special_token_ids = [i for i, p in enumerate(pieces) if not p or i in self.ends]
        self.tokens = list(pieces)
        for i in self.special_token_ids:
            self.tokens[i] = b"\xff<%d>" % i
        self.bos_token_id = None
        self.eos_token_id = self.end
        ends = sorted(self.ends) or [self.end]
        self.inner = LLTokenizer(TokenizerWrapper(self), n_vocab=len(pieces), eos_token=ends)

    def can_say(self, token: int) -> bool:
        return 0 <= token < self.n_vocab and bool(self.said[token])

    def __call__(self, text: bytes | str) -> list[int]:
        """The usual tokens of a text that goes on; by longest pieces where the tokenizer has no answer."""
        data = text.encode() if isinstance(text, str) else text
        try:
            before = self._tokenizer.encode(_MARK)
            ids = self._tokenizer.encode(_MARK + data.decode())
            n = len(before)
            if ids[:n] == before and b"".join(self._pieces[i] for i in ids[n:]) == data:
                return ids[n:]
        except Exception:  # a toy vocabulary, or half a character
            pass
        return self._longest_pieces(data)

    def _longest_pieces(self, data: bytes) -> list[int]:
        ids: list[int] = []
        while data:
            lengths = range(min(self._longest, len(data)), 0, -1)
            found = next((n for n in lengths if data[:n] in self._ids), 0)
            if not found:
                break
            ids.append(self._ids[data[:found]])
            data = data[found:]
        return ids


class Matching:
    """A core.ports.Constraint. The matcher is moved along with what is asked, so that one place after another along a
    draft costs one token each."""

    def __init__(self, vocab: Vocabulary, origin: Compiled) -> None:
        self._vocab, self._origin, self._matcher = vocab, origin, origin.shared.deep_copy()
        self._said: list[int] = []  # committed tokens
        self._text: list[int] = []  # those of them that are no end tokens
        self._held: list[int] = []  # what the matcher has consumed: of these, then of the last path
        self._broken: tuple[list[int], str] | None = None  # the text behind which it fails, and why

    @property
    def failure(self) -> str:
        return self._broken[1] if self._broken is not None and self._fails([]) else ""

    @property
    def done(self) -> bool:
        self._move([])
        if not self._fails([]) and not self._matcher.is_accepting():
            return False
        return not self._next([])[0].any()

    def allowed(self, path: Sequence[int] = ()) -> Mask:
        text, end = self._next(self._without_ends(path))
        if end and not (self._vocab.ends or text.any()):
            return np.ones_like(text)  # no end token to say so: the sequence knows it by `done`
        return text | self._vocab.end_mask if end else text

    def valid(self, path: Sequence[int]) -> int:
        n = next((i for i, token in enumerate(path) if token in self._vocab.ends), len(path))
        fits = self._move(list(path[:n]))
        return n + 1 if fits == n < len(path) and self._next(list(path[:n]))[1] else fits

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        text = self._without_ends(path)
        if self._move(text) < len(text) or self._fails(text):
            return ()
        tokens = self._matcher.compute_ff_tokens()[:_FORCED]
        if self._matcher.is_error():
            self._break(text)
            return ()
        return tokens[: max(self.valid([*text, *tokens]) - len(text), 0)] if tokens else ()

    def append(self, token: int) -> None:
        if token not in self._vocab.ends:
            n = len(self._text)
            if self._held[n : n + 1] != [token] and not self._move([token]) and not self._fails([token]):
                self._broken = [*self._text, token], "a token was said that the grammar does not allow"
            self._text.append(token)
        self._said.append(token)

    def take_back(self, n: int) -> None:
        for _ in range(n):
            if self._said.pop() not in self._vocab.ends:
                self._text.pop()

    def fork(self) -> Matching:
        other = Matching(self._vocab, self._origin)
        other._matcher, other._broken = self._matcher.deep_copy(), self._broken
        other._said, other._text, other._held = list(self._said), list(self._text), list(self._held)
        return other

    # -- the matcher -----------------------------------------------------------------------------------------------

    def _without_ends(self, path: Sequence[int]) -> list[int]:
        return [token for token in path if token not in self._vocab.ends]

    def _next(self, path: list[int]) -> tuple[Mask, bool]:
        """Which text may follow the path, and whether it may end there; behind what cannot stand there, nothing may."""
        for again in (True, False):
            if self._move(path) < len(path) or self._fails(path):
                break
            bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
            text, end = bits[: self._vocab.n_vocab].view(np.bool_) & self._vocab.said, bool(bits[self._vocab.end])
            if not self._matcher.is_error() and (self._can_go_on(text) or (end and self._matcher.is_accepting())):
                return text, end
            self._break(path, again)
        return np.zeros(self._vocab.n_vocab, np.bool_), True

    def _can_go_on(self, text: Mask) -> bool:
        """Where no token fits, llguidance allows the first one."""
        return bool(text.any()) and (not text[0] or bool(text[1:].any()) or self._matcher.validate_tokens([0]) == 1)

    def _move(self, path: list[int]) -> int:
        """Make the matcher stand behind as much of the path as may stand there; how many tokens that is."""
        n = len(self._text)
        if self._broken is not None and self._fails(path):  # never again to where it failed
            if self._fails([]):
                return 0
            path = path[: max(len(self._broken[0]) - 1 - n, 0)]
        path = list(takewhile(self._vocab.can_say, path))
        for again in (True, False):
            same = n + _common(self._held[n:], path) if len(self._held) >= n else len(self._held)
            if same < len(self._held):
                self._matcher.rollback(len(self._held) - same)
                del self._held[same:]
            new = [*self._text, *path][same:] if same < n else path[same - n :]
            if new:
                self._held += new[: self._matcher.try_consume_tokens(new)]
            if not self._matcher.is_error():
                break
            self._break([*self._text, *path][n : len(self._held) + 1], again)
        return max(len(self._held) - n, 0)

    def _fails(self, path: list[int]) -> bool:
        """Whether it is known to fail somewhere along the text and the path."""
        if self._broken is None:
            return False
        where = self._broken[0]
        return [*self._text, *path][: len(where)] == where

    def _break(self, path: Sequence[int], again: bool = False) -> None:
        """It failed behind this path, for good unless it shall try `again`, with nothing that it shares with others.

        Drafted tokens may yet be refused, so what led there must be able to go on."""
        if not again:
            self._broken = [*self._text, *path], _reason(self._matcher) or "no token of the vocabulary can go on here"
        self._origin.renew()
        self._matcher, self._held = self._origin.shared.deep_copy(), []


def _reason(matcher: LLMatcher) -> str:
    text = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if text.startswith("NoExtension"):
        return "there is nothing that may come next"
    return text if len(text) <= 300 else text[:299] + "…"


def _from_schema(text: str) -> str:
    """Nothing that a schema says of itself (`x-guidance`) changes how it is read."""
    return LLMatcher.grammar_from_json_schema(text, overrides=_OPTIONS)


def _with_schemas_checked(text: str) -> str:
    """The Lark grammar, with bounded whitespace in those of its schemas that do not say what they want."""
    out, at = "", 0
    for found in re.finditer(r"%json\s*(?={)", text):
        if found.start() < at:
            continue  # in a text of the schema before
        try:
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError) as e:
            raise InputError(f"a schema in the grammar is not JSON: {e}", HINT) from None
        options = schema.pop("x-guidance", _OPTIONS)
        check(schema, strict=not (isinstance(options, Mapping) and options.get("lenient")))
        out += text[at : found.end()] + json.dumps({**schema, "x-guidance": options})
        at = end
    return out + text[at:]


def _piece(tokenizer: Tokenizer, token: int) -> bytes:
    """Nothing for rows beyond the tokenizer's last token."""
    try:
        return tokenizer.piece(token)
    except IndexError:
        return b""


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
