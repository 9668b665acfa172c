"""Tools: read from a request, told to the model, kept to by a grammar, and read back out of what it writes."""

import itertools
import json

import llguidance
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.errors import InputError, UnknownName
from slipstream.text.calls import CallReader, ToolCall
from slipstream.text.chat import knows_tools, render
from slipstream.text.tools import Toolbox

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": CITY},
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
PARIS_CALL, NOW_CALL = ToolCall("get_weather", '{"city":"Paris"}'), ToolCall("get_time", "{}")
ASK = [{"role": "user", "content": "How is the weather?"}]
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}},
        {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": ""}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "a", "content": "17 °C"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "noon"}]},
]
KNOWS = "{% if tools %}T{{ tools | tojson }}\n{% endif %}{{ messages | tojson }}"
# Takes turns strictly, and has no turn for the system: its text goes before the user's first.
FOLDS = """{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}
{%- set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}
{%- endif %}[{{ m.role }}]{{ first if loop.first else '' }}{{ m.content }}{% endfor %}"""
REFUSES = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif -%}
[{{ m.role }}]{{ m.content }}{% endfor %}"""


# --- messages -----------------------------------------------------------------------------------------------------


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


# --- reading a request --------------------------------------------------------------------------------------------


def test_choices():
    for choice, wanted in (
        (None, ["get_weather", "get_time"]),
        ("auto", ["get_weather", "get_time"]),
        ("required", ["get_weather", "get_time"]),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"]),
        ("none", []),
    ):
        box = Toolbox.of(TOOLS, choice, KNOWS)
        assert [t.name for t in box.wanted] == wanted
        assert (box.grammar() is None) == (not wanted)
        assert [t["function"]["name"] for t in box.tools_for_template or []] == ([] if not wanted else wanted_all())
    for choice in (None, "auto", "none"):
        box = Toolbox.of(None, choice, KNOWS)
        assert box.grammar() is None and box.tools_for_template is None and box.messages(ASK) == ASK
    assert Toolbox.of([], None, KNOWS).choice == "none"


def wanted_all():
    return [t["function"]["name"] for t in TOOLS]


def tool(**function):
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("tools", "choice", "says"),
    [
        ("x", None, "tools is not a list"),
        ([3], None, "tools[0] is not a function"),
        ([WEATHER, {"type": "web_search"}], None, 'tools[1] is not a function, but "web_search"'),
        ([{"type": "function"}], None, "tools[0] lacks its function"),
        ([tool(name="a b")], None, 'tools[0]: the name is "a b"'),
        ([tool(name="a\n")], None, "tools[0]: the name"),
        ([tool(name="n" * 65)], None, "tools[0]: the name"),
        ([tool(name=None)], None, "tools[0]: the name is null"),
        ([tool(description=1)], None, "tools[0]: the description"),
        ([tool(parameters=[])], None, "tools[0]: the parameters are not a JSON schema"),
        ([tool(parameters={"type": "string"})], None, 'tools[0]: the parameters have the type "string"'),
        ([tool(strict="yes")], None, "tools[0]: strict"),
        ([TIME, WEATHER, TIME], None, "two tools have the name get_time"),
        (TOOLS, "always", 'tool_choice is "always"'),
        (TOOLS, ["auto"], "tool_choice is ["),
        (TOOLS, {"type": "function"}, "tool_choice is {"),
        (None, "required", "there are no tools"),
        (None, {"type": "function", "function": {"name": "f"}}, "there are no tools"),
    ],
)
def test_what_cannot_be_read_is_named(tools, choice, says):
    with pytest.raises(InputError) as e:
        Toolbox.of(tools, choice, None)
    assert says in e.value.message and e.value.hint


def test_an_unknown_function_gets_the_nearest():
    with pytest.raises(UnknownName) as e:
        Toolbox.of(TOOLS, {"type": "function", "function": {"name": "get_wether"}}, None)
    assert "get_weather" in e.value.hint


# --- telling the model --------------------------------------------------------------------------------------------


def test_a_template_that_knows_tools_gets_them_and_no_word_more():
    box = Toolbox.of(TOOLS, "required", KNOWS)
    assert box.messages(ASK) == ASK
    text = render(box.messages(ASK), KNOWS, tools=box.tools_for_template)
    told = json.loads(text.removeprefix("T").splitlines()[0])
    assert told == [WEATHER, tool(name="get_time", parameters={"type": "object", "properties": {}})]


@pytest.mark.parametrize("system", [None, "Be brief.", [{"type": "text", "text": "Be brief."}]])
@pytest.mark.parametrize("template", [None, FOLDS, REFUSES])
def test_other_templates_get_a_word_on_tools(template, system):
    messages = [{"role": "developer", "content": system}, *ASK] if system and template != REFUSES else ASK
    box = Toolbox.of(TOOLS, None, template)
    assert box.tools_for_template is None
    text = render(box.messages(messages), template)
    assert '"city"' in text and "<tool_call>" in text and "How is the weather?" in text
    assert text.index("get_time") < text.index("How is the weather?")
    if messages is not ASK:
        assert text.index("Be brief.") < text.index("# Tools") < text.index("How is the weather?")
    assert "Answer with a call" not in text
    forced = Toolbox.of(TOOLS, {"type": "function", "function": {"name": "get_time"}}, template)
    assert "Answer with a call of get_time" in render(forced.messages(messages), template)


# --- the grammar --------------------------------------------------------------------------------------------------


class Bytes:
    """Each byte is a token, and 256 ends the text."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = [bytes([i]) for i in range(256)] + [b"\xff<end>"]

    def __call__(self, data):
        return list(data)


VOCAB = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()), n_vocab=257, eos_token=[256])


def accepts(grammar, text):
    """How the grammar likes the text: "whole", "begun" (more must come), or "wrong"."""
    matcher = llguidance.LLMatcher(VOCAB, grammar)
    assert not matcher.is_error(), matcher.get_error()
    data = text.encode()
    if matcher.try_consume_tokens(list(data)) < len(data):
        return "wrong"
    return "whole" if matcher.is_accepting() else "begun"


def test_grammar_of_forced_calls():
    one = Toolbox.of(TOOLS, "required", None).grammar(parallel=False)
    many = Toolbox.of(TOOLS, "required", None).grammar(parallel=True)
    named = Toolbox.of(TOOLS, {"type": "function", "function": {"name": "get_time"}}, None).grammar()
    for grammar, whole, wrong in (
        (one, (PARIS, NOW), (f"{PARIS}\n{NOW}",)),
        (many, (PARIS, NOW, f"{PARIS}\n{NOW}", f"{NOW}\n{NOW}\n{PARIS}"), (f"{PARIS}x",)),
        (named, (NOW,), (PARIS, f"{NOW}\n{NOW}")),
    ):
        assert accepts(grammar, "") == "begun"
        for text in whole:
            assert accepts(grammar, text) == "whole"
            assert accepts(grammar, text[:-1]) == "begun"
        for text in ("hi", f"hi {NOW}", *wrong):
            assert accepts(grammar, text) == "wrong"


def test_grammar_of_free_text_with_calls():
    many = Toolbox.of(TOOLS, "auto", None).grammar(parallel=True)
    one = Toolbox.of(TOOLS, "auto", None).grammar(parallel=False)
    for grammar in (one, many):
        for text in ("", "hi there", "a <tool_", '{"name": "x"}\n\n', "<b>é</b>", PARIS, f"So: {NOW}"):
            assert accepts(grammar, text) == "whole"
        assert accepts(grammar, "so <tool_call>") == "begun"
        assert accepts(grammar, "so <tool_call> x") == "wrong"
        assert accepts(grammar, f"{PARIS}{NOW[:-1]}") == ("begun" if grammar is many else "wrong")
    assert accepts(many, f"{PARIS}\n{NOW}\nDone.") == "whole"
    assert accepts(one, f"{PARIS}\n") == "wrong"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_grammar_keeps_to_each_functions_schema(choice):
    grammar = Toolbox.of(TOOLS, choice, None).grammar()
    for call, expected in (
        ('{"name": "get_weather", "arguments": {"city": "</tool_call>", "unit": "c"}}', "whole"),
        ('{"name": "get_weather", "arguments": {}}', "wrong"),
        ('{"name": "get_weather", "arguments": {"city": 3}}', "wrong"),
        ('{"name": "get_weather", "arguments": {"city": "x", "unit": "k"}}', "wrong"),
        ('{"name": "get_weather", "arguments": {"city": "x", "more": 1}}', "wrong"),
        ('{"name": "get_time", "arguments": {"city": "x"}}', "wrong"),
        ('{"name": "get", "arguments": {}}', "wrong"),
    ):
        assert accepts(grammar, f"<tool_call>\n{call}\n</tool_call>") == expected


def test_strict_decides_on_what_a_grammar_cannot_say():
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    lax, strict = (Toolbox.of([tool(parameters=odd, strict=s)], "required", None).grammar() for s in (False, True))
    assert accepts(lax, '<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>') == "whole"
    assert "uniqueItems" in llguidance.LLMatcher(VOCAB, strict).get_error()


# --- reading the answer -------------------------------------------------------------------------------------------


def read(*chunks, names=("get_weather", "get_time")):
    """What a reader makes of the chunks, neighbouring texts joined."""
    reader, out = CallReader(names), []
    for piece in [p for c in chunks for p in reader.push(c)] + reader.finish():
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        else:
            out.append(piece)
    return out


BROKEN = [
    "<tool_call>\n{oops}\n</tool_call>",
    '<tool_call>\n{"name": "get_time", "arguments": {}',
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "get_time", "arguments": []}</tool_call>',
    '<tool_call>{"name": "get_time", "arguments": {}} and more</tool_call>',
    "<tool_call>" + "[" * 5000 + "</tool_call>",
    "<tool_call>" + "9" * 5000 + "</tool_call>",
    '<tool_call>{"name": "get_time", "arguments": {"a": "x}}</tool_call>',
    "<tool_call><tool_call>",
    '<tool_call>{"name": "get_time", "arguments": {"a": NaN, "b": 1e999}}</tool_call>',
    "</tool_call> <tool_ca",
    " \n <tool_call>\n</tool_call> x",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PARIS, [PARIS_CALL]),
        (f"\n {PARIS}\n{NOW}\n", [PARIS_CALL, NOW_CALL]),
        (f"Let me see.\n{PARIS}", ["Let me see.\n", PARIS_CALL]),
        (f"{PARIS}\n\nDone.", [PARIS_CALL, "Done."]),
        (f"  {BROKEN[2]} {NOW}", [f"  {BROKEN[2]} ", NOW_CALL]),
        (f"{NOW}\n{BROKEN[1]}", [NOW_CALL, BROKEN[1]]),
        *((f"{b}{NOW}", [b, NOW_CALL]) for b in BROKEN if b != BROKEN[-1]),
        (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "a </tool_call> \\" </tool_call>"}}</tool_call>',
            [ToolCall("get_weather", '{"city":"a </tool_call> \\" </tool_call>"}')],
        ),
        (
            '<tool_call>{"name": "get_time", "arguments": {"a": "\\ud800", "b": "é"}}</tool_call>',
            [ToolCall("get_time", '{"a":"\\ud800","b":"\\u00e9"}')],
        ),
        ('{"name": "get_time", "arguments": {}}', [NOW_CALL]),
        ('{{"name": "get_time", "arguments": {}}', [NOW_CALL]),
        ('```json\n{{"name": "get_time", "arguments": {}}}\n{"name": "get_time"}```', [NOW_CALL, NOW_CALL]),
        (f'{{"name": "get_time"}} or {NOW}', ['{"name": "get_time"} or ', NOW_CALL]),
        ('\n```json\n{ "name" : "get_time",\n "arguments": {}\n}\n```\n', [NOW_CALL]),
        ('```\n{"name": "get_time", "arguments": {}}', [NOW_CALL]),
        ('{"name": "get_time"}\n{"name": "get_weather", "arguments": {"city": "Paris"}}', [NOW_CALL, PARIS_CALL]),
    ],
)
def test_calls_are_read(text, expected):
    assert read(text) == expected
    assert read(*text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "plain text with < and <tool and {",
        '{"name": "get_time", "arguments": {}} is how one would call it',
        'So: {"name": "get_time", "arguments": {}}',
        '{"name": "other", "arguments": {}}',
        '{"name": "get_time", "arguments": {}, "more": 1}',
        '{"name": "get_time", "argu',
        '{{"name": "get_time", "arguments": {}}}}',
        '{"name": "get_time", "arguments": {}}}',
        "```json\n[1, 2]\n```",
        "```json\n",
        *BROKEN,
    ],
)
def test_what_is_no_call_comes_through_unchanged(text):
    expected = [text] if text else []
    assert read(text) == expected
    assert read(*text) == expected


def test_text_is_given_at_once_unless_it_may_begin_a_call():
    reader = CallReader(["get_time"])
    assert reader.push("Hello <b") == ["Hello <b"]
    assert reader.push("old> <to") == ["old> "]
    assert reader.push("ol") == []
    assert reader.push("s>") == ["<tools>"]
    assert reader.push(NOW[:-1]) == []
    assert reader.push(NOW[-1]) == [NOW_CALL]
    assert reader.push("\n") == []
    assert reader.push("x") == ["x"]
    assert reader.finish() == []
    reader = CallReader(["get_time"])
    assert reader.push('{"na') == []
    assert reader.push('{"name": "geo"') == ['{"na{"name": "geo"']


def test_without_tools_all_is_text_at_once():
    reader = Toolbox.of(TOOLS, "none", None).reader()
    assert reader.push("<tool_call>\n") == ["<tool_call>\n"]
    assert reader.push('{"name": "get_time"}') == ['{"name": "get_time"}']
    assert reader.finish() == []


PIECES = [
    PARIS,
    NOW,
    *BROKEN,
    " ",
    "\n",
    "text",
    "<",
    "<tool_call>",
    "</tool_call>",
    '{"name": "get_time"}',
    "```json\n",
]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("".join), st.data())
@example(f"x{PARIS}", None)
def test_any_chunking_gives_the_same(text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12))) if data else list(range(len(text) + 1))
    bounds = [0, *cuts, len(text)]
    whole = read(text)
    assert read(*(text[a:b] for a, b in itertools.pairwise(bounds))) == whole
    if not any(isinstance(p, ToolCall) for p in whole):
        assert "".join(whole) == text
    elif not text.lstrip().startswith(("{", "```")):
        kept = "".join("\0" if isinstance(p, ToolCall) else p for p in whole)
        for call in (PARIS, NOW):
            text = text.replace(call, "\0")
        assert "".join(kept.split()) == "".join(text.split())  # but for white space, nothing is lost or doubled


@given(
    st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.lists(st.booleans()), max_size=4),
    st.text(alphabet="ab <>{}\n", max_size=10).filter(lambda t: not t.strip().startswith("{")),
)
def test_any_arguments_come_back(arguments, before):
    call = json.dumps({"name": "get_time", "arguments": arguments}, ensure_ascii=False)
    *text, found = read(f"{before}<tool_call>\n{call}\n</tool_call>")
    assert json.loads(found.arguments) == arguments
    assert "".join(text) == (before if before.strip() else "")


# --- the catalog's models -----------------------------------------------------------------------------------------


def template_of(name):
    from slipstream.hub import resolve
    from slipstream.models.gguf import read_header

    return read_header(resolve(name)).metadata.get("tokenizer.chat_template")


def dialogue(template):
    box = Toolbox.of(TOOLS, None, template)
    messages = box.messages([{"role": "system", "content": "Be brief."}, *ASK, CALLED, *RESULTS])
    return render(messages, template, tools=box.tools_for_template)


def check_dialogue(text):
    """System text and tools first, then question, call and results; the model's turn comes next."""
    order = ("Be brief.", '"city"', "get_time", "How is the weather?", "Zürich", "17 °C", "noon")
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert text.count("<|im_start|>system") == 1
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>' in text
    assert "<tool_response>\n17 °C\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n")


def test_smollm2():
    template = template_of("smollm2-135m")
    assert not knows_tools(template)
    check_dialogue(dialogue(template))


@pytest.mark.large
def test_qwen():
    template = template_of("qwen2.5-coder-0.5b")
    assert knows_tools(template)
    check_dialogue(dialogue(template))


@pytest.mark.large
def test_gemma():
    template = template_of("gemma-3-270m")  # a base model: its file may hold no template, and ChatML stands in
    assert not knows_tools(template)
    text = dialogue(template)
    order = ("Be brief.", '"city"', "How is the weather?", "Zürich", "17 °C", "noon")
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
