"""What fields of requests are made of: strict types with limits, and unknown names that say the nearest known one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from slipstream.errors import UnknownName

INT64 = 2**63
MOST_TOKENS = 2**31 - 1
MOST_PROMPTS = 128
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=2**20, fail_fast=True)]
Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Stops = StopText | Annotated[list[StopText], Field(max_length=64)]  # OpenAI takes 4, editors send more
Bias = dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")], Annotated[float, Field(ge=-100, le=100)]]


class Strict(BaseModel):
    """No field is guessed, converted or ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = {f.alias or name for name, f in cls.model_fields.items()}
            for name in data:
                if name not in known:
                    e = UnknownName("field", str(name)[:80], known)
                    context = {"what": e.message, "hint": e.hint, "field": str(name)[:80]}
                    raise PydanticCustomError("unknown_field", "{what}", context)
        return data


class Body(Strict):
    """A whole request."""

    @model_validator(mode="before")
    @classmethod
    def _characters(cls, data: Any) -> Any:
        for name, value in data.items() if isinstance(data, dict) else ():
            if _broken(value):
                context = {"field": str(name)[:80], "hint": "characters beyond U+FFFF are two \\u escapes in JSON"}
                raise PydanticCustomError("unicode", "half of a surrogate pair is no character", context)
        return data


def _broken(value: Any) -> bool:
    """Whether a text in it cannot be written as UTF-8."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                return True
        elif isinstance(value, list):
            left += [v for v in value if not isinstance(v, int)]
        elif isinstance(value, dict):
            left += [*value, *value.values()]
    return False


class TextPart(Strict):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind not in ("text", "refusal"):
            context = {"kind": kind[:80], "hint": "leave out images, audio and files", "field": "type"}
            raise PydanticCustomError("text_only", "this model takes text only, not a part of type {kind}", context)
        return data


Parts = Annotated[list[TextPart], Field(min_length=1, max_length=4096)]
Text = str | Parts


def plain(text: Text) -> str:
    """A text that may have come in parts; parts stand on lines of their own, as the chat templates have them."""
    return text if isinstance(text, str) else "\n".join(part.text for part in text)


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None  # nothing is obfuscated


class Prediction(Strict):
    """What the answer is expected to be like: drafted from, never trusted."""

    type: Literal["content"]
    content: Text


class SpeculativeOptions(Strict):
    """How this request may be drafted for. Left out: as the server does it."""

    mode: Literal["auto", "off"] | None = None
    drafters: Annotated[list[str], Field(max_length=16)] | None = Field(None, description="Of the server's, only these")
    max_nodes: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = Field(
        None, description="Drafted tokens verified in one step, at most"
    )
    verify: Literal["exact", "rejection", "block", "typical"] | None = None
    detail: bool | None = Field(None, description="Say who proposed each piece of text, and what each step did")


class JsonSchema(Strict):
    name: Name
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class AsText(Strict):
    type: Literal["text"]


class AsJson(Strict):
    type: Literal["json_object"]


class AsSchema(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[AsText | AsJson | AsSchema, Field(discriminator="type")]
