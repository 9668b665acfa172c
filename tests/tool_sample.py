"""Tools, calls and chat templates that several tests share."""

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
