"""The command line's way to prices, steps, predictions and corpora, on the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.app import main
from test_cli import MODEL, REPEATS, assert_refused, last_json, slipstream

LINES = "\n".join(f"item {i}: the price of lot {i * 37 % 101} is {i * 13 % 89} crowns" for i in range(40))


def test_cost_prints_the_staircase_and_saves_it(smollm2: Path, tmp_path: Path) -> None:
    saved = tmp_path / "prices.json"
    done = slipstream("cost", "-m", MODEL, "--context", "100", "--save", str(saved), "--json")
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    sizes = [row["n"] for row in found["rows"]]
    assert sizes[0] == 1 and sizes == sorted(set(sizes)) and sizes[-1] >= 16
    assert found["rows"][0]["times"] == 1 and all(row["ms"] > 0 for row in found["rows"])
    assert all(0 <= row["break_even"] <= 1 for row in found["rows"] if row["break_even"] is not None)
    assert last_json(saved.read_text().replace("\n", " "))["curve"] == found["curve"]
    assert "break-even" in done.stdout and "█" in done.stdout


def test_a_measured_price_list_is_kept_and_read(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from slipstream import pricing

    monkeypatch.setattr(pricing, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(pricing, "BUSY", 2.0)  # the tests' own machine may be busy
    monkeypatch.setattr(pricing, "DISTURBED", 100.0)
    assert main(["cost", "-m", MODEL, "--json"]) == 0
    first = last_json(capsys.readouterr().out)["curve"]
    assert len(list((tmp_path / "prices").iterdir())) == 1
    assert main(["cost", "-m", MODEL, "--json"]) == 0
    assert last_json(capsys.readouterr().out)["curve"] == first
    assert main(["cost", "-m", MODEL, "--fresh", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["curve"] != first


def test_explain_shows_every_step(smollm2: Path) -> None:
    done = slipstream("run", "-m", MODEL, "--raw", "--max-tokens", "24", "--explain", "--json", REPEATS)
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    steps = [s for s in found["steps"] if not s["prefilled"]]
    assert sum(s["emitted"] for s in steps) == found["usage"]["completion_tokens"] - 1
    assert all(s["plain_s"] > 0 for s in steps if s["expected"] is not None)
    for word in ("considered", "expected", "earned ms"):
        assert word in done.stderr
    assert set(found["drafters"]) == {"suffix"}
    assert found["drafters"]["suffix"].startswith(("active", "paused"))


def test_a_prediction_is_drafted_from_and_changes_nothing(smollm2: Path, tmp_path: Path) -> None:
    common = ("run", "-m", MODEL, "--raw", "--max-tokens", "24", "--json")
    plain = last_json(slipstream(*common, "--draft", "none", REPEATS).stdout)
    expected = tmp_path / "expected.txt"
    expected.write_text(plain["text"])
    done = slipstream(*common, "--k", "6", "--draft", "none", "--predict", str(expected), REPEATS)
    found = last_json(done.stdout)
    assert found["ids"] == plain["ids"]
    assert found["stats"]["by_drafter"]["predicted"]["accepted"] > 12


def test_a_corpus_is_drafted_from_and_kept_only_when_asked(smollm2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "lots.txt").write_text(LINES)
    (folder / "noise.bin").write_bytes(b"\0\1\2")
    prompt = "\n".join(LINES.splitlines()[:3]) + "\n"
    common = ("run", "-m", MODEL, "--raw", "--max-tokens", "32", "--json", "--draft", "none")
    plain = last_json(slipstream(*common, prompt).stdout)
    found = last_json(slipstream(*common, "--k", "4", "--corpus", str(folder), prompt).stdout)
    assert found["ids"] == plain["ids"] and found["stats"]["by_drafter"]["corpus"]["verified"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["texts"], "nothing is stored unasked"
    kept = tmp_path / "lots.npz"
    slipstream(*common, "--k", "4", "--corpus", str(folder), "--save-corpus", str(kept), prompt)
    again = last_json(slipstream(*common, "--k", "4", "--corpus", str(kept), prompt).stdout)
    assert again["ids"] == plain["ids"] and again["stats"]["proposed"] == found["stats"]["proposed"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "-m", MODEL, "--policy", "prized", "hi"], "did you mean priced"),
        (["run", "-m", MODEL, "--policy", "priced", "--k", "4", "hi"], "k is the draft length of the fixed policy"),
        (["run", "-m", MODEL, "--width", "0", "hi"], "width is 0"),
        (["run", "-m", MODEL, "--draft", "suffix,none", "hi"], "--draft none stands alone"),
        (["run", "-m", MODEL, "--draft", "suffix,suffix", "hi"], "named twice"),
        (["run", "-m", MODEL, "--draft", f"{MODEL},qwen2.5-coder-0.5b", "hi"], "two draft models"),
        (["run", "-m", MODEL, "--corpus", "nowhere", "hi"], "no such file or folder: nowhere"),
        (["run", "-m", MODEL, "--save-corpus", "x.npz", "hi"], "there is no corpus to save"),
        (["run", "-m", MODEL, "--predict", "nowhere.txt", "hi"], "cannot read nowhere.txt"),
        (["run", "-m", MODEL, "--compare", "--explain", "hi"], "--explain shows one run"),
        (["cost", "-m", MODEL, "--context", "-1"], "the context is -1"),
        (["cost", "-m", MODEL, "--save", "nowhere/x.json"], "cannot write nowhere/x.json"),
        (["tune-draft", "-m", MODEL, "--draft", "suffix"], "suffix is not a draft model"),
        (["tune-draft", "-m", MODEL, "--draft", MODEL, "--name", "suffix"], "suffix"),
    ],
)  # fmt: skip
def test_bad_input(smollm2: Path, args: list[str], words: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(args, words, capsys, monkeypatch)
