"""One request from its prompt to its result: text, stops, caps and usage, counted token by token."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slipstream.core.ports import Constraint
from slipstream.core.sequence import Emission, Token
from slipstream.core.sequence import Sequence as TokenSequence
from slipstream.core.stats import Stats
from slipstream.core.types import FinishReason, SamplingParams, StepRecord
from slipstream.errors import InputError
from slipstream.text.detok import Segment, TextStream
from slipstream.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What to generate: `prompt` (text as it is, or token ids) or `messages` (through the chat template), not both."""

    prompt: str | Sequence[int] | None = None
    messages: Sequence[Message] | None = None
    max_tokens: int | None = 256  # None: up to the end of the context
    stop: Sequence[str] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    verify: str | None = None  # None: the engine's
    speculative: bool = True
    logprobs: int | None = None  # so many likeliest tokens beside each delivered one
    reuse_cache: bool = False  # start from what an earlier request left in a slot, as a chat does
    ignore_end: bool = False  # go on after an end token (benchmarks)
    prediction: str | Sequence[int] | None = None  # what the answer is expected to be like, for the predicted drafter
    constraint: Constraint | None = None  # a grammar, for one (Engine.grammars); a fork of it is used
    drafters: Sequence[str] | None = None  # of the engine's, only these; None: all
    max_nodes: int | None = None  # drafted tokens verified in one step, at most; None: as the policy likes
    tools: Sequence[Mapping[str, Any]] | None = None  # functions in OpenAI's format, for the chat template

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InputError(
                "give either a prompt or messages", "a prompt is taken as it is; messages use the template"
            )
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InputError(f"max_tokens is {self.max_tokens}", "give 0 or more, or none for no cap")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise InputError(f"logprobs is {self.logprobs}", "ask for 0 to 100 alternatives")
        if self.max_nodes is not None and self.max_nodes < 1:
            raise InputError(f"max_nodes is {self.max_nodes}", "give 1 or more, or switch drafting off")
        if self.tools is not None and self.messages is None:
            raise InputError("tools are given without messages", "tools belong to a conversation")
        if isinstance(self.stop, str):
            raise InputError("stop is a text, not a list of texts", f"use stop=[{self.stop!r}]")


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Chunk:
    """What one step adds: text that can be shown, the tokens delivered, and the step's record."""

    segments: tuple[Segment, ...]
    tokens: tuple[Token, ...]
    record: StepRecord | None

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.segments)


@dataclass(frozen=True)
class Result:
    """A finished generation. `notes` say what a user should know, such as why nothing was drafted."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
    usage: Usage
    stats: Stats
    notes: tuple[str, ...]
    drafters: Mapping[str, str] = field(default_factory=dict)  # a word on each at the end: active, or paused and why

    def as_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "text": self.text,
            "ids": list(self.ids),
            "finish_reason": self.finish_reason,
            "usage": asdict(self.usage),
            "stats": self.stats.as_dict(),
            "drafters": dict(self.drafters),
            "notes": list(self.notes),
        }
        if any(t.logprob is not None for t in self.tokens):
            out["logprobs"] = [
                {"id": t.id, "logprob": t.logprob, "top": [list(pair) for pair in t.top_logprobs]} for t in self.tokens
            ]
        return out


class Generation:
    """A request while it runs. The engine feeds it emissions; `result()` may be asked for at any time."""

    def __init__(
        self, sequence: TokenSequence, tokenizer: Tokenizer, stop: Sequence[str], cached: int, notes: Sequence[str]
    ) -> None:
        self.sequence, self.cached, self.notes = sequence, cached, tuple(notes)
        self._tokenizer, self._stream = tokenizer, TextStream(stop)
        self.tokens: list[Token] = []
        self.segments: list[Segment] = []
        self.stats = Stats()
        self.drafters: Mapping[str, str] = {}
        self.backlog: deque[Chunk] | None = None  # for a reader that does not make every step itself

    @property
    def done(self) -> bool:
        return self.sequence.finish is not None

    def take(self, emission: Emission) -> Chunk:
        """Turn a step's tokens into text; a stop string cuts the tokens behind it as if they had never been."""
        seq, segments, kept = self.sequence, [], 0
        for token in emission.tokens:
            kept += 1
            segments += self._stream.push(self._tokenizer.piece(token.id), token.origin)
            if self._stream.stopped:
                seq.cut(len(self.tokens) + kept)
                seq.finish = "stop"
                break
        if seq.finish is not None:
            segments += self._stream.finish()
        tokens, record = emission.tokens[:kept], emission.record
        if kept < record.emitted:
            accepted = min(record.accepted, kept)
            origins = record.accepted_origins[:accepted]
            record = replace(record, emitted=kept, accepted=accepted, accepted_origins=origins)
        return self._add(Chunk(tuple(segments), tokens, record))

    def cancel(self) -> Chunk:
        """End it here; text that was held back for a stop string is released."""
        if self.sequence.finish is None:
            self.sequence.finish = "cancelled"
        return self._add(Chunk(tuple(self._stream.finish()), (), None))

    def _add(self, chunk: Chunk) -> Chunk:
        self.tokens += chunk.tokens
        self.segments += chunk.segments
        if chunk.record is not None:
            self.stats.add(chunk.record)
        if self.backlog is not None:
            self.backlog.append(chunk)
        return chunk

    def result(self) -> Result:
        seq = self.sequence
        return Result(
            text="".join(s.text for s in self.segments),
            ids=tuple(t.id for t in self.tokens),
            tokens=tuple(self.tokens),
            segments=tuple(self.segments),
            finish_reason=seq.finish or "cancelled",
            usage=Usage(seq.n_prompt, len(self.tokens), self.cached),
            stats=self.stats,
            notes=self.notes,
            drafters=self.drafters,
        )
