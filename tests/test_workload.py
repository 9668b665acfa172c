"""Workloads: what files, logs and folders are taken for, and which kind of work a prompt is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.advise import kinds
from slipstream.advise.code_tasks import LANGUAGES, tasks
from slipstream.advise.measure import Work
from slipstream.advise.workload import Loaded, load
from slipstream.cli.app import main
from slipstream.errors import InputError

SRC = Path(kinds.__file__).parents[1]


def written(tmp_path: Path, *lines: Any) -> Path:
    file = tmp_path / "w.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return file


# -- kinds -------------------------------------------------------------------------------------------------------------

# Not those that the rules were written with.
SEEN = {
    kinds.NEW_CODE: [
        "Implement a binary search tree in Rust with insert and contains.",
        "写一个计算斐波那契数列的函数",
    ],
    kinds.CODE_EDIT: [
        "Fix the bug in this code:\n```python\ndef f(x):\n    return x +\n```",
        "重构这段代码:\n```js\nfunction f(){}\n```",
    ],
    kinds.STRUCTURED: [
        "Generate a YAML file for a GitHub workflow that runs tests.",
        "Give me a CSV with five cities and populations.",
    ],
    kinds.TRANSLATION: ["Translate to Italian: the cat sleeps.", "请把这句话翻译成德语:今天下雨。"],
    kinds.SUMMARY: ["Summarize the plot of the attached chapter in two lines.", "请总结上面的会议内容。"],
    kinds.QA: ["Who opened the market, and when?\n\n" + "The market of Elm was opened in 1890 by the mayor. " * 20],
    kinds.MATHS: ["Calculate 15 % of 480 and subtract 12.", "If 3 pens cost 4.50, how much do 7 pens cost?"],
    kinds.CREATIVE: ["Write a limerick about a tired bus.", "写一个关于月亮的童话"],
    kinds.LONG: ["Continue this text: It was late when the ferry left.", "The hill was steep. " * 60],
    kinds.CHAT: ["What should I cook tonight?", "Hi! How are you?", "你好,最近怎么样?"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in SEEN.items() for text in texts])
def test_rules_find_the_kind_of_a_prompt(kind: str, text: str) -> None:
    rule = kinds.classify(text)
    assert rule.kind == kind, rule.why
    assert (rule.kind, rule.why) in kinds.table()


@given(st.text(max_size=2000))
def test_every_text_has_a_kind(text: str) -> None:
    assert kinds.classify(text).kind in kinds.KINDS


def test_the_built_in_suite_has_ten_kinds_in_two_languages_and_the_rules_agree() -> None:
    loaded = load("builtin")
    assert not loaded.bad and len(loaded.mix) == 10 and min(loaded.mix.values()) >= 6
    chinese = [work for work in loaded.works if any("\u4e00" <= c <= "\u9fff" for c in work.text)]
    assert {work.kind for work in chinese} == set(loaded.mix) and len(chinese) >= 19
    agree = sum(kinds.classify(work.text).kind == work.kind for work in loaded.works)
    assert agree / len(loaded.works) >= 0.95
    few = loaded.cut(2)
    assert Counter(work.kind for work in few.works) == dict.fromkeys(loaded.mix, 2)
    assert few.mix == few.cut(1).mix == loaded.mix, "the mix is that of all prompts"


# -- files and logs ----------------------------------------------------------------------------------------------------


def asked(loaded: Loaded) -> list[Sequence[Any] | str | None]:
    return [work.messages if work.messages is not None else work.prompt for work in loaded.works]


def test_requests_are_taken_from_logs_in_the_shapes_that_apis_use(tmp_path: Path) -> None:
    user = {"role": "user", "content": "Translate to French: good morning"}
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "Write a poem"}, {"type": "text", "text": "on rain."}],
    }
    file = written(
        tmp_path,
        {"model": "m", "messages": [{"role": "system", "content": "s"}, user], "temperature": 0.2},
        {
            "custom_id": "1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [parts]},
        },
        {"request": {"model": "m", "messages": [user, {"role": "assistant", "content": "Bonjour"}]}, "response": {}},
        {"model": "m", "prompt": "def add(a, b):", "max_tokens": 20},
        {"model": "m", "input": "Hello there", "instructions": "Be kind."},
    )
    loaded = load(file)
    assert not loaded.bad
    assert asked(loaded) == [
        [{"role": "system", "content": "s"}, user],
        [{"role": "user", "content": "Write a poem\non rain."}],
        [user],
        "def add(a, b):",
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello there"}],
    ]
    assert [work.raw for work in loaded.works] == [False, False, False, True, False]
    assert [work.kind for work in loaded.works][:3] == [kinds.TRANSLATION, kinds.CREATIVE, kinds.TRANSLATION]


def test_a_line_says_its_own_kind_and_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    file = written(
        tmp_path,
        {"kind": "mine", "prompt": "Translate: cat"},
        {"model": "m", "messages": [image]},
        {"messages": [{"role": "assistant", "content": "only me"}]},
        {"prompt": "x", "knid": "y"},
    )
    loaded = load(file)
    assert [(work.kind, work.why) for work in loaded.works] == [("mine", "as given")]
    assert [reason for _, reason in loaded.bad] == [
        "a message holds something else than text", "messages hold nothing that a user said", "unknown key knid",
    ]  # fmt: skip


def test_a_workload_that_was_written_down_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.jsonl"
    assert main(["workload", str(SRC), "--out", str(out), "--json", "--rules"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    again = load(out)
    assert not again.bad and found["prompts"] == len(again.works) > 10
    before = load(SRC)
    keep = [(w.kind, w.prompt, w.messages, w.raw, w.middle) for w in before.works]
    assert [(w.kind, w.prompt, w.messages, w.raw, w.middle) for w in again.works] == keep


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["builtin", "--per-kind", "-1"], "--per-kind is -1"),
        (["builtin", "--out", "nowhere/x.jsonl"], "cannot write nowhere/x.jsonl"),
    ],
)
def test_bad_input_is_one_message(args: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", *args]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"error: {error}") and said[1].startswith("hint: ")


# -- folders -----------------------------------------------------------------------------------------------------------


def test_tasks_from_a_folder_are_the_same_each_time_and_of_three_sorts() -> None:
    works, _ = tasks(SRC)
    assert works == tasks(SRC)[0] and len(works) == 24
    files = {
        text for f in SRC.rglob("*") if f.suffix in LANGUAGES and len(text := f.read_text(encoding="utf-8")) >= 400
    }
    sorts = {work.why for work in works}
    assert len(sorts) == 3
    for work in works:
        if work.kind == kinds.CODE_EDIT:
            assert any(text.rstrip() in work.text for text in files) and "Rename `" in work.text
        elif work.middle is not None:
            assert any(text.startswith(work.middle[0]) and work.middle[1] in text for text in files)
        else:
            assert work.raw and any(text.startswith(work.text) for text in files) and work.text.endswith("\n")


def test_a_folder_without_source_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see " * 100)
    (tmp_path / "data.py").write_bytes(b"\0" * 1000)
    with pytest.raises(InputError, match="no source files"):
        load(tmp_path)


def test_what_is_renamed_is_used_more_than_once(tmp_path: Path) -> None:
    body = "def lonely(a):\n    return a\n\n\ndef total_of(items):\n    return sum(items)\n\n\n"
    (tmp_path / "a.py").write_text(body + "print(total_of([1, 2]))\n" * 20)
    (edit,) = [work for work in load(tmp_path).works if work.kind == kinds.CODE_EDIT]
    assert "Rename `total_of` to `new_total_of` everywhere" in edit.text
    assert set(LANGUAGES.values()) >= {"python", "go", "rust"}


class Fim:
    """As much of an engine as a request needs."""

    def __init__(self, fim: tuple[int, int, int] | None) -> None:
        self.tokenizer = self
        self.fim, self.chat_template = fim, "x"

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]


def test_a_gap_is_asked_for_in_the_models_own_way() -> None:
    work = Work(kinds.COMPLETION, middle=("ab", "c"))
    assert work.request(Fim((1, 2, 3))).prompt == [1, 97, 98, 2, 99, 3]  # type: ignore[arg-type]
    assert work.request(Fim(None)).prompt == "ab"  # type: ignore[arg-type]
    assert Work("", "x", raw=True).request(Fim(None)).prompt == "x"  # type: ignore[arg-type]
    assert Work("", "x").request(Fim(None)).messages == [{"role": "user", "content": "x"}]  # type: ignore[arg-type]


def test_other_line_separators_belong_to_the_text(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    lines = [json.dumps({"prompt": "one\u2028two\u0085three"}, ensure_ascii=False), json.dumps({"prompt": "four"})]
    file.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    loaded = load(file)
    assert [work.prompt for work in loaded.works] == ["one\u2028two\u0085three", "four"] and not loaded.bad


@pytest.mark.parametrize(
    ("kind", "words"), [("all", "stands for all"), ("x" * 41, "up to 40"), ("  ", "up to 40"), (5, "up to 40")]
)
def test_kinds_that_cannot_be(kind: Any, words: str, tmp_path: Path) -> None:
    loaded = load(written(tmp_path, {"kind": kind, "prompt": "x"}, {"kind": "mine", "prompt": "y"}))
    assert len(loaded.bad) == 1 and words in loaded.bad[0][1] and loaded.mix == {"mine": 1}


def test_secrets_do_not_hide_in_names(tmp_path: Path) -> None:
    file = written(tmp_path, {"kind": "ann@example.org", "prompt": "x"}, {"my mail is ann@x.org": 1, "prompt": "y"})
    loaded = load(file)
    assert loaded.works[0].kind == "█████" and loaded.bad == [("line 2", "unknown key")]


def test_a_file_of_one_line_gives_no_task(tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("function f(a){return a+1};" * 40)
    assert tasks(tmp_path)[0] == []
