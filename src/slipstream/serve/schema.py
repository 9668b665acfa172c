"""What clients may ask: OpenAI's two endpoints with their limits, a few fields of llama-server's and vLLM's, and
`speculative`. A field that is not listed here is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, model_validator

from slipstream.serve.failures import FieldError
from slipstream.serve.fields import (
    INT64,
    MOST_PROMPTS,
    Bias,
    Body,
    Count,
    Prediction,
    ResponseFormat,
    SpeculativeOptions,
    Stops,
    StreamOptions,
    TokenId,
    TokenIds,
)
from slipstream.serve.messages import Message, NamedTool, Tool, ToolChoice

COMPLETION_TOKENS = 16  # of /v1/completions, when the request says nothing: OpenAI's own default
Short = Annotated[str, Field(max_length=512)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
PromptIds = Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]


class Generate(Body):
    """What both endpoints share. null is the same as leaving a field out."""

    model: Short | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=32)] | None = None
    stop: Stops | None = None
    seed: Annotated[int, Field(ge=-INT64, le=INT64 - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Bias | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    # As in llama-server and vLLM.
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = Field(None, description="0 or -1: off")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = Field(None, description="repetition_penalty")
    ignore_eos: bool | None = None
    speculative: bool | SpeculativeOptions | None = None
    # These change nothing about an answer, by OpenAI's own definition.
    user: Short | None = None
    safety_identifier: Short | None = None
    prompt_cache_key: Short | None = None
    metadata: Annotated[dict[Short, Short], Field(max_length=16)] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @model_validator(mode="after")
    def _together(self) -> Generate:
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options is for streams", "give stream: true, or leave it out")
        a, b = self.repetition_penalty, self.repeat_penalty
        if a is not None and b is not None and a != b:
            raise FieldError(
                "repeat_penalty", "repetition_penalty and repeat_penalty are one setting, and differ", "give one"
            )
        if self.ignore_eos and self.structured:
            raise FieldError("ignore_eos", "a response_format ends the answer, and ignore_eos does not", "give one")
        return self

    @property
    def structured(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def options(self) -> SpeculativeOptions:
        given = self.speculative
        if isinstance(given, SpeculativeOptions):
            return given
        return SpeculativeOptions(mode="off" if given is False else "auto")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [{"model": "default", "max_tokens": 64, **body}]})


class ChatRequest(Generate):
    model_config = _example(messages=[{"role": "user", "content": "Name three rivers."}])

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None

    @model_validator(mode="after")
    def _chat_together(self) -> ChatRequest:
        a, b = self.max_tokens, self.max_completion_tokens
        if a is not None and b is not None and a != b:
            raise FieldError("max_tokens", f"max_tokens is {a} and max_completion_tokens is {b}", "give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs", "give logprobs: true")
        if not self.tools:
            for name in ("tool_choice", "parallel_tool_calls"):
                if getattr(self, name) is not None:
                    raise FieldError(name, f"{name} needs tools", "give tools, or leave it out")
        if self.calls and self.structured:
            if self.tool_choice in (None, "auto"):
                why, hint = (
                    "an answer cannot be both calls and a response_format",
                    "give tool_choice: none, or one of both",
                )
            else:
                why, hint = "tool_choice asks for a call, and response_format for another form", "give one of them"
            raise FieldError("response_format", why, hint)
        if self.calls and self.ignore_eos:
            raise FieldError("ignore_eos", "a call ends the answer, and ignore_eos does not", "leave it out")
        return self

    @property
    def calls(self) -> bool:
        """Whether functions may be called."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def choice(self) -> str | dict[str, Any] | None:
        return self.tool_choice.model_dump() if isinstance(self.tool_choice, NamedTool) else self.tool_choice

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generate):
    """`prompt`: a text or token ids as they are, or several of either, each with `n` choices of its own."""

    model_config = _example(prompt="The river rose in the night.", temperature=0)

    prompt: str | Prompts | TokenIds | PromptIds
    suffix: str | None = Field(None, description="What follows the gap, for models that fill in")
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=32)] | None = Field(None, description="Only the same as n")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _completion_together(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise FieldError("best_of", f"best_of is {self.best_of}, which is not n", "ask for n and choose yourself")
        if self.echo and self.logprobs is not None:
            raise FieldError(
                "echo", "the prompt's own log-probabilities are not supported", "leave out echo or logprobs"
            )
        return self

    @property
    def limit(self) -> int | None:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return cast("list[str | list[int]]", self.prompt if several else [self.prompt])


class TokenizeRequest(Body):
    content: str
    add_special: bool = Field(False, description="Put the start token before the text, where the model has one")
    parse_special: bool = Field(True, description="Read control tokens that are written in the text")
    with_pieces: bool = False


class DetokenizeRequest(Body):
    tokens: Annotated[list[TokenId], Field(max_length=2**20)]
