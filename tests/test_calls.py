"""Tool calls read back out of what a model writes, however it comes in pieces."""

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.text.calls import CallReader, ToolCall
from slipstream.text.tools import Toolbox
from tool_sample import NOW, PARIS, TOOLS

PARIS_CALL, NOW_CALL = ToolCall("get_weather", '{"city":"Paris"}'), ToolCall("get_time", "{}")


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
