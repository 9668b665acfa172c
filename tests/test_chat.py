"""Messages as clients send them, made ready for a chat template."""

import json

import pytest

from slipstream.errors import InputError
from slipstream.text.chat import knows_tools, render
from tool_sample import ASK, CALLED, FOLDS, KNOWS, RESULTS


def rendered(messages, tools=None):
    return json.loads(render(messages, "{{ messages | tojson }}{% if tools %}{% endif %}", tools=tools))


def test_content_may_be_parts_and_arguments_become_objects():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    out = rendered([{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}, CALLED, *RESULTS])
    assert [m["role"] for m in out] == ["system", "user", "assistant", "tool", "tool"]
    assert [m["content"] for m in out] == ["be brief", "one\ntwo", "", "17 °C", "noon"]
    assert [c["function"]["arguments"] for c in out[2]["tool_calls"]] == [{"city": "Zürich"}, {}]
    assert out[3]["tool_call_id"] == "a"


def test_the_given_messages_are_left_as_they_were():
    before = json.dumps([CALLED, *RESULTS])
    messages = json.loads(before)
    render([*ASK, *messages], None)
    assert json.dumps(messages) == before


def test_empty_calls_and_names_are_as_none():
    message = {"role": "assistant", "content": "hi", "tool_calls": [], "name": None}
    assert rendered([message]) == [{"role": "assistant", "content": "hi"}]


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def calling(**function):
    return {"role": "assistant", "tool_calls": [{**CALL, "function": {**CALL["function"], **function}}]}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"role": "assistant", "content": None}, "message 2 lacks a role or a content"),
        ({"role": "user", "content": 7}, "message 2 lacks"),
        ({"content": "x"}, "message 2 lacks"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "message 2 has a part of type image_url",
        ),
        ({"role": "user", "content": ["x"]}, "message 2 has a part that cannot be read"),
        ({"role": "user", "content": [{"type": "text"}]}, "message 2 has a part"),
        ({"role": "user", "content": "x", "name": 3}, "message 2: name"),
        ({"role": "tool", "content": "x", "tool_call_id": {}}, "message 2: tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "message 2 has tool_calls"),
        ({"role": "assistant", "tool_calls": "x"}, "message 2: tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": [3]}, "message 2: call 1 lacks a function"),
        (calling(name=None), "message 2: call 1 lacks a function"),
        (calling(arguments="{"), "message 2: call 1: its arguments are not JSON"),
        (calling(arguments="[" * 100_000), "message 2: call 1: its arguments are not JSON"),
        (calling(arguments="[1]"), "message 2: call 1: its arguments are not an object"),
        (calling(arguments=3), "message 2: call 1: its arguments are not an object"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(bad, says):
    with pytest.raises(InputError) as e:
        render([{"role": "user", "content": "x"}, bad], KNOWS)
    assert says in e.value.message and e.value.hint


def test_a_template_that_knows_no_tools_gets_calls_and_results_as_turns_of_text():
    out = render([*ASK, CALLED, *RESULTS, {"role": "user", "content": "And now?"}], FOLDS)
    assert out == (
        "[user]How is the weather?"
        '[assistant]<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
        "[user]<tool_response>\n17 °C\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\nAnd now?"
    )


def test_whether_a_template_knows_tools():
    assert knows_tools(KNOWS) and knows_tools("{% for t in tools or [] %}{{ t }}{% endfor %}")
    for template in (None, FOLDS, "tools {# tools #}{{ 'tools' }}", "{% set tools = 1 %}", "{% broken"):
        assert not knows_tools(template)
