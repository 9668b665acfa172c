"""What kind of work a prompt asks for, by rules that can be read: the first one that fits decides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CODE_EDIT, NEW_CODE, STRUCTURED = "code editing", "new code", "structured"
TRANSLATION, SUMMARY, QA = "translation", "summary", "question answering"
COMPLETION, CREATIVE, LONG, CHAT, MATHS = "code completion", "creative", "long continuation", "chat", "maths"
KINDS = (NEW_CODE, COMPLETION, CODE_EDIT, STRUCTURED, TRANSLATION, SUMMARY, QA, MATHS, CHAT, CREATIVE, LONG)

_GIVEN = 600  # characters: a text is given, not only mentioned
_ASKED = 400  # characters at each end of a long prompt in which the request itself is looked for


@dataclass(frozen=True)
class Rule:
    """`needs` lists patterns that must all be found in the request; `given` asks for a text or code that came along."""

    kind: str
    why: str
    needs: tuple[str, ...] = ()
    given: str = ""  # "", "code" or "text"


_CHANGE = (
    r"\b(re-?write|refactor|rename|modify|change|fix|edit|replace|add|remove|convert|update|port|extend|translate|turn)\b"
    r"|修改|重构|修复|改写|重命名|添加"
)
_CODE = (
    r"\b(function|class|method|script|program|code|module|unit tests?|regex|algorithm|decorator|python|javascript"
    r"|typescript|java|rust|golang|c\+\+|bash|implement)\b|函数|代码|脚本|程序|实现|编写一个类"
)
_WRITE = (
    r"\b(write|create|implement|make|give|generate|complete|produce|show|turn|reply|return|convert|extract|list)\b"
    r"|写|编写|生成|实现|给出|补全"
)
RULES: tuple[Rule, ...] = (
    Rule(CODE_EDIT, "brings code and asks for a change", (_CHANGE,), "code"),
    Rule(TRANSLATION, "asks for a translation", (r"\btranslat(e|ion|ing)\b|翻译|译成|译为",)),
    Rule(
        STRUCTURED,
        "asks for JSON, SQL, YAML, XML, CSV or a table",
        (r"\b(json|yaml|sql|xml|csv|toml|html|markdown table|create table|openapi)\b|表格|结构化", _WRITE),
    ),
    Rule(
        SUMMARY,
        "asks for a summary",
        (r"\b(summari[sz]e|summari[sz]ing|summary of|tl;?dr|key points|gist)\b|总结|摘要|概括|概述",),
    ),
    Rule(
        SUMMARY,
        "asks what a text holds",
        (r"\b(list|extract|what are) (all )?the (main|key|decisions|points|tasks)\b|要点|列出",),
        "text",
    ),
    Rule(
        QA,
        "asks about a text that came along",
        (r"\?|？|\b(according to|based on|from the text|answer)\b|根据|回答",),
        "text",
    ),
    Rule(NEW_CODE, "asks for code", (_CODE, _WRITE)),
    Rule(LONG, "asks to go on with a text", (r"\b(continue|carry on|go on with|keep writing)\b|续写|继续写|接着写",)),
    Rule(
        CREATIVE,
        "asks for a story, a poem or the like",
        (
            r"\b(story|poem|dialogue|haiku|sonnet|lyrics|fairy tale|legend|novel|monologue|limerick|fable|scene"
            r"|imaginary|invent)\b"
            r"|故事|诗|小说|童话|歌词|想象|描写",
        ),
    ),
    Rule(
        MATHS,
        "asks for a calculation",
        (
            r"\b(calculate|compute|solve|how (many|much|long|far)|step by step|when does"
            r"|what is the (area|sum|total|average|speed|price|chance)|probability|per ?cent)\b"
            r"|%|计算|求解|多少|概率",
            r"\d",
        ),
    ),
    Rule(
        LONG,
        "is a long text that asks for nothing",
        (r"^(?![\s\S]*[?？])(?![\s\S]*\b(please|write|explain)\b)",),
        "text",
    ),
)
_DEFAULT = Rule(CHAT, "no other rule fits")
_HAN = re.compile("[\u4e00-\u9fff]")  # one of these says as much as three letters
_LOOKS_LIKE_CODE = re.compile(
    r"```|^\s*(def|class|import|from|function|const|let|var|public|fn|#include|package)\b.*[({:;]?", re.M
)


def classify(text: str) -> Rule:
    """The rule that fits the text of a prompt, or of a chat's last message by the user."""
    request = text if len(text) <= 2 * _ASKED else f"{text[:_ASKED]}\n{text[-_ASKED:]}"
    return next((rule for rule in RULES if _fits(rule, text, request)), _DEFAULT)


def _fits(rule: Rule, text: str, request: str) -> bool:
    if rule.given == "code" and not _LOOKS_LIKE_CODE.search(text):
        return False
    if rule.given == "text" and len(text) + 2 * len(_HAN.findall(text)) < _GIVEN:
        return False
    return all(re.search(pattern, request, re.I) for pattern in rule.needs)


def table() -> Sequence[tuple[str, str]]:
    """Kind and reason of every rule, in the order in which they are tried."""
    return [(rule.kind, rule.why) for rule in (*RULES, _DEFAULT)]
