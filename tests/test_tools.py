"""Tools: read from a request, told to the model, and kept to by a grammar."""

import json

import llguidance
import pytest

from slipstream.errors import InputError, UnknownName
from slipstream.text.chat import knows_tools, render
from slipstream.text.tools import Toolbox
from tool_sample import ASK, CALLED, FOLDS, KNOWS, NOW, PARIS, REFUSES, RESULTS, TIME, TOOLS, WEATHER

# --- reading a request ----------------------------------------------------------------------------------------------


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


# --- telling the model ----------------------------------------------------------------------------------------------


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


# --- the grammar ----------------------------------------------------------------------------------------------------


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


# --- the catalog's models -------------------------------------------------------------------------------------------


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


@pytest.mark.large
def test_qwens_own_tokens_fit_the_grammar():
    """`<tool_call>` is one token there, and others reach over the edges of the arguments."""
    from slipstream.engine import Engine

    with Engine.open("qwen2.5-coder-0.5b", None, n_ctx=256) as engine:
        for choice, text in (("required", f"{PARIS}\n{NOW}"), ("auto", f"Well: {PARIS}\n{NOW} Done.")):
            ids = engine.tokenizer.encode(text)
            begin = engine.tokenizer.encode("<tool_call>")
            assert len(begin) == 1
            constraint = engine.grammars.lark(Toolbox.of(TOOLS, choice, None).grammar())
            assert constraint.valid(ids) == len(ids)
            at = ids.index(begin[0])
            wrong = [*ids[: at + 1], *engine.tokenizer.encode(" x")]
            assert constraint.valid(wrong) == at + 1
