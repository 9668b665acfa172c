"""From what a client asks to what the engine runs: one Request for each choice, and what is needed to answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slipstream.core.ports import Constraint
from slipstream.core.types import SamplingParams
from slipstream.errors import InputError, UnknownName
from slipstream.generation import Request
from slipstream.serve.failures import FieldError
from slipstream.serve.fields import AsSchema, plain
from slipstream.serve.schema import ChatRequest, CompletionRequest, Generate
from slipstream.serve.service import Facts, Service
from slipstream.text.tools import Toolbox

if TYPE_CHECKING:
    from slipstream.text.grammar import Grammars

_SEEDS = 2**32  # of those that are drawn: every client can send one back
_NUCLEUS = 1e-6  # what top_p 0 means: the likeliest token alone


@dataclass(frozen=True)
class Plan:
    """`requests[i]` is choice `i`; each prompt has `n` of them, in order. `echo` holds a text for each prompt."""

    requests: Sequence[Request]
    seed: int  # of the first choice, as the client may send it
    mode: str
    verify: str
    n: int = 1
    detail: bool = False
    include_usage: bool = False
    toolbox: Toolbox | None = None
    echo: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def logprobs(self) -> bool:
        return self.requests[0].logprobs is not None


async def chat(service: Service, body: ChatRequest) -> Plan:
    """Raises InputError and its kinds for what cannot be done."""
    await service.check_model(body.model)
    facts = await service.facts()
    messages: Sequence[Mapping[str, Any]] = [m.as_dict() for m in body.messages]
    toolbox, tools = None, None
    if body.tools:
        given = [t.model_dump(exclude_none=True) for t in body.tools]
        toolbox = _blaming("tool_choice", lambda: Toolbox.of(given, body.choice, facts.template))
        messages, tools = toolbox.messages(messages), toolbox.tools_for_template
    constraint = await _constraint(service, body, toolbox, body.parallel_tool_calls is not False)
    plan = await _plan(service, body, [Request(messages=messages, tools=tools, constraint=constraint)])
    return replace(plan, toolbox=toolbox)


async def completion(service: Service, body: CompletionRequest) -> Plan:
    """Raises InputError and its kinds for what cannot be done."""
    await service.check_model(body.model)
    facts, given = await service.facts(), body.prompts
    for ids in given:
        if not isinstance(ids, str):
            await service.check_ids(ids, "prompt")
    prompts = [await _prompt(service, facts, p, body.suffix or "") for p in given]
    if not all(prompts):
        raise FieldError("prompt", "the prompt is empty", "give at least one character")
    echo = [p if isinstance(p, str) else await service.text(p) for p in given] if body.echo else ()
    constraint = await _constraint(service, body, None, True)
    plan = await _plan(service, body, [Request(p, constraint=constraint) for p in prompts])
    return replace(plan, echo=echo)


async def _prompt(service: Service, facts: Facts, prompt: str | list[int], suffix: str) -> list[int]:
    """Token ids. Editors write a model's fill-in tokens into the text themselves, so control tokens are read."""
    if not suffix:
        return await service.encode(prompt, True, True) if isinstance(prompt, str) else prompt
    if facts.fim is None:
        raise FieldError("suffix", f"{facts.name} was not made to fill in", "leave out suffix, or serve a coding model")
    before, after, gap = facts.fim
    head = await service.encode(prompt, False, False) if isinstance(prompt, str) else prompt
    return [*facts.start, before, *head, after, *await service.encode(suffix, False, False), gap]


async def _plan(service: Service, body: ChatRequest | CompletionRequest, bases: Sequence[Request]) -> Plan:
    facts, o, n = await service.facts(), body.options, body.n or 1
    seed = secrets.randbelow(_SEEDS) if body.seed is None else body.seed
    most = service.options.max_waiting + facts.slots
    if len(bases) * n > most:
        raise FieldError("n", f"{len(bases) * n} choices are more than this server ever takes", f"ask for up to {most}")
    for name in o.drafters or ():
        if name not in facts.drafters:
            e = UnknownName("drafter", name, facts.drafters or ["none"])
            raise FieldError("speculative.drafters", e.message, e.hint)
    limit, notes = _limit(body.limit, service.options.max_tokens)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or ()
    sampling = await _sampling(service, body)
    requests = [
        replace(
            base,
            max_tokens=limit,
            stop=tuple(stop),
            sampling=replace(sampling, seed=(seed + i) % 2**64),
            verify=o.verify,
            speculative=o.mode != "off",
            logprobs=body.alternatives,
            reuse_cache=True,
            ignore_end=bool(body.ignore_eos),
            prediction=None if body.prediction is None else plain(body.prediction.content),
            drafters=o.drafters,
            max_nodes=o.max_nodes,
        )
        for base in bases
        for i in range(n)
    ]
    mode, verify = o.mode or "auto", o.verify or facts.verify
    return Plan(requests, seed, mode, verify, n, bool(o.detail), body.include_usage, notes=notes)


def _limit(asked: int | None, most: int | None) -> tuple[int | None, tuple[str, ...]]:
    if most is None or (asked is not None and asked <= most):
        return asked, ()
    return most, (f"the server gives {most} tokens at most",) if asked is not None else ()


async def _sampling(service: Service, body: Generate) -> SamplingParams:
    """OpenAI's defaults: temperature 1, and no filter."""
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    await service.check_ids(bias, "logit_bias")
    penalties = (body.repetition_penalty, body.repeat_penalty, 1.0)
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(body.top_k or 0, 0),
        top_p=1.0 if body.top_p is None else max(body.top_p, _NUCLEUS),
        min_p=body.min_p or 0.0,
        repetition_penalty=next(p for p in penalties if p is not None),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=bias,
    )


async def _constraint(service: Service, body: Generate, toolbox: Toolbox | None, parallel: bool) -> Constraint | None:
    """The grammar of the answer, compiled beside the models' thread."""
    grammar = toolbox.grammar(parallel) if toolbox is not None else None
    if grammar is None and not body.structured:
        return None
    grammars: Grammars = await service.call(lambda e: e.grammars)
    if grammar is not None:
        return await asyncio.to_thread(_blaming, "tools", lambda: grammars.lark(grammar))
    form = body.response_format
    if isinstance(form, AsSchema) and form.json_schema.schema_ is not None:
        schema = form.json_schema.schema_
        return await asyncio.to_thread(_blaming, "response_format", lambda: grammars.json_schema(schema))
    return await asyncio.to_thread(_blaming, "response_format", grammars.json_object)


def _blaming(param: str, make: Callable[[], Any]) -> Any:
    """What `make` gives; the InputErrors that it raises name the field."""
    try:
        return make()
    except RecursionError:
        raise FieldError(param, "it is nested too deep", "give a flatter one") from None
    except InputError as e:
        raise FieldError(param, e.message, e.hint) from None
