"""Answers as /openapi.json describes them. They are built elsewhere as plain objects; tests hold the two together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Finish = Literal["stop", "length", "tool_calls"]


class Doc(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class ErrorBody(Doc):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Doc):
    error: ErrorBody


class PromptDetails(Doc):
    cached_tokens: int


class CompletionDetails(Doc):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(Doc):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Segment(Doc):
    text: str
    origin: str


class Segments(Doc):
    segments: list[Segment]


class DrafterCounts(Doc):
    verified: int
    accepted: int


class Speculative(Doc):
    """What drafting did for this answer, summed over its choices. `reason`: why nothing was verified."""

    mode: Literal["auto", "off"]
    active: bool
    reason: str
    verify: str
    lossy: bool
    seed: int
    drafters: dict[str, str]
    steps: int
    verify_steps: int
    drafted: int
    verified: int
    accepted: int
    discarded: int
    padded: int
    first_tokens: int
    emitted: int
    emitted_verifying: int
    prefilled: int
    accepted_per_position: list[int]
    verified_per_position: list[int]
    by_drafter: dict[str, DrafterCounts]
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    tokens_per_second: float | None
    draft_s: float
    forward_s: float
    verify_s: float
    prefill_s: float
    time_saved_s: float | None
    notes: list[str]
    segments: list[Segment] | None = None


class Answer(Doc):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    speculative: Speculative


class CalledFunction(Doc):
    name: str
    arguments: str


class Call(Doc):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Doc):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[Call] | None = None


class Alternative(Doc):
    id: int
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(Doc):
    content: list[TokenLogprob]
    refusal: None


class ChatAnswerChoice(Doc):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    speculative: Segments | None = None


class ChatAnswer(Answer):
    object: Literal["chat.completion"]
    choices: list[ChatAnswerChoice]


class TextLogprobs(Doc):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    token_ids: list[int]


class TextAnswerChoice(Doc):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish
    speculative: Segments | None = None


class TextAnswer(Answer):
    object: Literal["text_completion"]
    choices: list[TextAnswerChoice]


class ModelCard(Doc):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Doc):
    object: Literal["list"]
    data: list[ModelCard]


class Piece(Doc):
    id: int
    piece: str | list[int]


class Tokens(Doc):
    tokens: list[int] | list[Piece]


class Content(Doc):
    content: str


class Health(Doc):
    status: Literal["ok"]
    slots: int
    active: int
    waiting: int


class Illness(Doc):
    status: Literal["crashed", "stuck", "closed"]
    reason: str


class Status(Doc):
    target: str
    drafter: str | None
    drafters: dict[str, str]
    verify: str
    lossy: bool
    active: bool
    reason: str


class Props(Doc):
    model: str
    n_ctx: int
    slots: int
    speculative: Status
    prices: dict[str, list[tuple[int, float]]]
    chat_template: str | None
    version: str


_DATA = {
    "type": "string",
    "description": "A chunk as JSON; an object with `error` where it breaks off; [DONE] at the end",
}
_EVENT = {"type": "object", "properties": {"data": _DATA}, "required": ["data"]}
_STREAM = {"text/event-stream": {"schema": _EVENT}}
_WHY = {
    400: "The request cannot be used as it is; `param` names the field",
    401: "No valid API key",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is compressed",
    429: "Too many requests wait; see Retry-After",
    503: "The models' thread has failed, or the server is closing",
    504: "The request took longer than it may",
}


def answers(
    model: type[BaseModel] | None = None, *statuses: int, streams: bool = False, ill: bool = False
) -> dict[int | str, dict[str, Any]]:
    """What a route answers: `model` with 200, errors with these statuses and any other."""
    ok: dict[str, Any] = {"description": "The answer"}
    if model is not None:
        ok["model"] = model
    if streams:
        ok["content"] = _STREAM
    errors: dict[int | str, dict[str, Any]] = {s: {"model": ErrorAnswer, "description": _WHY[s]} for s in statuses}
    if ill:
        errors[503] = {"model": Illness, "description": "The models' thread has failed or hangs"}
    return {200: ok, **errors, "default": {"model": ErrorAnswer, "description": "Any other error, in the same shape"}}
