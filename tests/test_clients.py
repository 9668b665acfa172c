"""Real clients against a live server with the embedded model: openai, llm, and LangChain's ChatOpenAI."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel, ValidationError

from live import live, smollm2

NAME = "smollm2-135m"
KEY = "a key of ours"
ASK = [{"role": "user", "content": "Tell me about rivers."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
            "required": ["city", "unit"],
        },
    },
}
CHOICE = {"type": "function", "function": {"name": "get_weather"}}
TEXT = "one two three four five six seven eight nine ten eleven twelve"


PAGES = Path(__file__).parent.parent / "docs" / "clients"
URL = "http://127.0.0.1:8080/v1"  # as the pages have it


def blocks(page, language):
    """The code on a page of the documents."""
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{page}.md").read_text("utf-8"), re.DOTALL)


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def url():
    with live(smollm2(n_slots=1), aliases=(NAME,), api_keys=(KEY,)) as base:
        yield f"{base}/v1"


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """No client may ask anybody but our server; a proxy that is not there catches those that try."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)


# --- openai -------------------------------------------------------------------------------------------------------


def test_models(client):
    assert NAME in [m.id for m in client.models.list()]
    assert client.models.retrieve(NAME).object == "model"
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("gpt-4o")
    assert e.value.code == "model_not_found"


def test_streaming_says_the_same_as_the_whole_answer(client):
    asked = {"model": NAME, "messages": ASK, "max_tokens": 40, "temperature": 0.7, "seed": 11}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(chunks) > 10
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason == "length"
    assert [c.usage.completion_tokens for c in chunks if c.usage] == [40] == [whole.usage.completion_tokens]
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 40
    said = [c.speculative for c in chunks if getattr(c, "speculative", None)][-1]
    assert said["seed"] == whole.speculative["seed"] == 11
    assert said["emitted"] + said["first_tokens"] == 40


def test_asynchronous():
    """Four streams at once, on four slots."""

    async def ask(client, seed):
        stream = await client.chat.completions.create(
            model=NAME, messages=ASK, max_tokens=24, seed=seed, stream=True, stream_options={"include_usage": True}
        )
        chunks = [c async for c in stream]
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks[-1].usage

    async def together(base):
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in range(4)))

    with live(smollm2(), aliases=(NAME,), max_waiting=0) as base:  # a fifth would be refused
        answers = asyncio.run(together(base))
    assert [usage.completion_tokens for _, usage in answers] == [24] * 4
    assert len({text for text, _ in answers}) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_read(client, stream):
    asked = {"model": NAME, "tools": [WEATHER], "max_tokens": 200, "seed": 3}
    messages = [{"role": "user", "content": "How is the weather in Paris?"}]
    if stream:
        with client.chat.completions.stream(messages=messages, tool_choice=CHOICE, **asked) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(messages=messages, tool_choice=CHOICE, **asked)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("c", "f")
    call = {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
    turns = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "17 °C"},
    ]
    after = client.chat.completions.create(
        messages=[*messages, *turns], tool_choice="none", **{**asked, "max_tokens": 16}
    )
    assert after.choices[0].message.content
    assert after.choices[0].message.tool_calls is None


def test_a_json_schema_is_parsed_by_pydantic(client):
    answer = client.chat.completions.parse(
        model=NAME,
        messages=[{"role": "user", "content": "Invent a person."}],
        response_format=Person,
        max_tokens=200,
        temperature=0,
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person)
    assert json.loads(answer.choices[0].message.content) == person.model_dump()


def test_logprobs(client):
    answer = client.chat.completions.create(
        model=NAME, messages=ASK, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert "".join(t.token for t in tokens) == answer.choices[0].message.content
    for t in tokens:
        assert t.logprob <= 0
        assert len(t.top_logprobs) == 3
        assert t.top_logprobs[0].token == t.token  # greedy: the likeliest was said
        assert t.top_logprobs[0].logprob == pytest.approx(t.logprob)


def test_a_prediction_is_drafted_from_and_counted(client):
    asked = {"model": NAME, "messages": ASK, "max_tokens": 48, "temperature": 0}
    plain = client.chat.completions.create(**asked)
    text = plain.choices[0].message.content
    told = client.chat.completions.create(**asked, prediction={"type": "content", "content": text})
    assert told.choices[0].message.content == text
    assert told.usage.completion_tokens_details.accepted_prediction_tokens >= 24
    assert told.speculative["by_drafter"]["predicted"]["accepted"] >= 24
    assert told.speculative["steps"] < plain.speculative["steps"]
    wrong = client.chat.completions.create(
        **asked, prediction={"type": "content", "content": "Quite another text. " * 4}
    )
    assert wrong.choices[0].message.content == text
    assert wrong.usage.completion_tokens_details.accepted_prediction_tokens < 8


def test_speculation_is_a_choice_of_the_request(client):
    asked = {"model": NAME, "messages": ASK, "max_tokens": 32, "temperature": 0}
    on = client.chat.completions.create(**asked)
    off = client.chat.completions.create(**asked, extra_body={"speculative": False})
    assert on.choices[0].message.content == off.choices[0].message.content
    assert off.speculative["verified"] == 0
    assert not off.speculative["active"]
    assert off.speculative["reason"]


def test_a_second_turn_is_read_from_the_cache(client):
    first = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=16, temperature=0)
    turns = [*ASK, {"role": "assistant", "content": first.choices[0].message.content}]
    turns += [{"role": "user", "content": "Go on."}]
    second = client.chat.completions.create(model=NAME, messages=turns, max_tokens=4, temperature=0)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_completions(client):
    asked = {"model": NAME, "prompt": TEXT, "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked, logprobs=2)
    assert "".join(whole.choices[0].logprobs.tokens) == whole.choices[0].text
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text


def test_errors_are_the_ones_that_the_client_knows(client, url):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=ASK)
    assert missing.value.code == "model_not_found"
    assert NAME in missing.value.message
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model=NAME, messages=ASK, extra_body={"temprature": 1})
    assert unknown.value.param == "temprature"
    assert "temperature" in unknown.value.message
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "word " * 3000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="another", max_retries=0).models.list()


def test_too_many_requests_say_when_to_come_back():
    with live(smollm2(None, n_slots=1), max_waiting=0) as base:
        client = openai.OpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0, timeout=60)
        asked = {"model": "default", "messages": ASK, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
        with client.chat.completions.create(**asked, stream=True) as running:
            next(iter(running))
            with pytest.raises(openai.RateLimitError) as e:
                client.chat.completions.create(**asked)
        assert int(e.value.response.headers["Retry-After"]) >= 1
        again = client.with_options(max_retries=5)  # the stream hung up: its slot comes back
        assert again.chat.completions.create(**{**asked, "max_tokens": 2}).usage.completion_tokens == 2


# --- llm ----------------------------------------------------------------------------------------------------------


def llm(folder, *arguments):
    """The command line's output; `llm` knows only what is in its folder."""
    env = {**os.environ, "LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_llm(url, client, tmp_path):
    [entry] = blocks("llm", "yaml")
    (tmp_path / "extra-openai-models.yaml").write_text(entry.replace(URL, url) + "  api_key_name: slipstream\n")
    (tmp_path / "keys.json").write_text(json.dumps({"slipstream": KEY}))
    expected = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=24, temperature=0)
    asked = ("-m", "slipstream", "-o", "temperature", "0", "-o", "max_tokens", "24", ASK[0]["content"])
    for how in ((), ("--no-stream",)):
        assert llm(tmp_path, "prompt", *how, *asked).strip() == expected.choices[0].message.content.strip()
    made = llm(tmp_path, "-m", "slipstream", "-o", "temperature", "0", "--schema", "name, age int", "Invent a person.")
    assert isinstance(json.loads(made)["age"], int)


# --- LangChain ----------------------------------------------------------------------------------------------------


@pytest.fixture
def chain(url):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=NAME, base_url=url, api_key=KEY, temperature=0, max_tokens=64, max_retries=0, timeout=60)


def test_langchain_invokes_and_streams(chain, client):
    expected = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=64, temperature=0)
    answer = chain.invoke(ASK[0]["content"])
    assert answer.content == expected.choices[0].message.content
    assert answer.usage_metadata["output_tokens"] == expected.usage.completion_tokens
    chunks = list(chain.stream(ASK[0]["content"]))
    assert len(chunks) > 10
    assert "".join(c.content for c in chunks) == answer.content


def test_langchain_calls_tools(chain):
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = chain.bind_tools([WEATHER], tool_choice="get_weather")
    ask = HumanMessage("How is the weather in Paris?")
    answer = bound.invoke([ask])
    [call] = answer.tool_calls
    assert call["name"] == "get_weather"
    assert call["args"].keys() == {"city", "unit"}
    streamed = None
    for chunk in bound.stream([ask]):
        streamed = chunk if streamed is None else streamed + chunk
    assert [c["args"] for c in streamed.tool_calls] == [call["args"]]
    assert chain.invoke([ask, answer, ToolMessage("17 °C", tool_call_id=call["id"])]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structures_its_output(chain, method):
    try:
        person = chain.with_structured_output(Person, method=method).invoke("Invent a person.")
    except ValidationError as e:  # cut short: the model is a very small one
        pytest.fail(str(e))
    assert isinstance(person, Person)


# --- the documents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "says"), [("openai-python", "drafted tokens accepted"), ("langchain", "")])
def test_the_examples_run_as_they_stand(url, page, says, capsys):
    namespace = {"code": "x = 1\nprint(x)\n", "messages": ASK}
    found = blocks(page, "python")
    assert len(found) > 1
    for block in found:
        exec(block.replace(URL, url).replace('api_key="any"', f"api_key={KEY!r}"), namespace)
    said = capsys.readouterr().out
    assert len(said) > 50
    assert says in said
