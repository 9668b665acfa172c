"""The command line through its real entry point, on the embedded model."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from gguf_writer import tiny_llama, write_gguf
from helpers import why_bits_differ
from slipstream.cli.app import main
from slipstream.hub.catalog import HubSource
from slipstream.models import memory
from slipstream.models.llamacpp import probe
from test_hub import WHOLE, catalog_of

COMMANDS = (
    "demo", "run", "chat", "advise", "report", "export", "bench", "audit", "check", "cost", "doctor", "matrix",
    "models", "pull", "tune-draft", "workload",
)  # fmt: skip
MODEL = "smollm2-135m"
REPEATS = "one two three four one two three four one two"  # raw text that any drafter can go on with
ROW = {
    "kind",
    "plain_tps",
    "spec_tps",
    "speedup",
    "acceptance_rate",
    "mean_acceptance_length",
    "identical",
    "near_ties",
}


def slipstream(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipstream", *args]
    return subprocess.run(command, input=stdin, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def last_json(stdout: str) -> Any:
    return json.loads(stdout.splitlines()[-1])


def assert_one_clear_error(stderr: str) -> None:
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and len(errors[0]) > len("error: ")
    assert "Traceback" not in stderr


def assert_refused(args: list[str], words: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message with these words and a hint, exit code 2, and the same as an object on stdout."""
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main([*args, "--json"]) == 2
    out, err = capsys.readouterr()
    assert_one_clear_error(err)
    assert words in err
    assert set(last_json(out)) == {"error", "hint"}


# -- what each command gives ---------------------------------------------------------------------------------------


def test_run_sends_text_to_stdout_and_the_rest_to_stderr(smollm2: Path) -> None:
    done = slipstream("run", "-m", str(smollm2), "--raw", "--max-tokens", "12", "--k", "4", REPEATS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" three four")
    for word in ("tok/s", "acceptance rate", "by drafter", "suffix", "forward"):
        assert word in done.stderr and word not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr, "no escape codes in a pipe"


def test_run_json_is_the_last_line_and_plain_ids_are_the_same(smollm2: Path) -> None:
    common = ("run", "-m", MODEL, "--raw", "--json", "--max-tokens", "10", "--k", "3")
    spec = last_json(slipstream(*common, stdin=REPEATS + "\n").stdout)
    plain = last_json(slipstream(*common, "--draft", "none", "-", stdin=REPEATS).stdout)
    assert spec["ids"] == plain["ids"] and len(spec["ids"]) == 10
    assert spec["finish_reason"] == "length" and spec["stats"]["accepted"] > 0
    assert spec["status"]["active"] is True and spec["interrupted"] is False
    assert plain["status"]["active"] is False
    assert any("drafting was off" in note for note in plain["notes"])


def test_run_uses_the_chat_template_stop_and_sampling(smollm2: Path) -> None:
    sampled = ("--temperature", "0.8", "--seed", "7", "--logit-bias", "5=-100", "--logit-bias", "6=2.5")
    common = ("run", "-m", MODEL, "--json", "--max-tokens", "24", *sampled, "List the colours of the rainbow.")
    first, second = (last_json(slipstream(*common, *more).stdout) for more in ((), ("--draft", "none")))
    assert first["usage"]["prompt_tokens"] > 20, "the template adds its own tokens"
    assert first["ids"] == second["ids"], "the same seed gives the same text with and without drafting"
    stop = first["text"][5:9]
    cut = last_json(slipstream(*common, "--stop", stop).stdout)
    assert cut["finish_reason"] == "stop" and cut["text"] == first["text"].partition(stop)[0]


def test_compare_says_which_is_faster_and_whether_the_text_is_the_same(smollm2: Path) -> None:
    done = slipstream("run", "-m", MODEL, "--raw", "--json", "--compare", "--max-tokens", "12", "--k", "15", REPEATS)
    found = last_json(done.stdout)["comparison"]
    assert done.returncode == 0 and found["identical"] is True
    assert f"{found['speedup']:.2f}x" in done.stderr
    assert ("slower than plain decoding" in done.stderr) == (found["speedup"] < 1)
    assert "Leave it off" in done.stderr if found["speedup"] < 1 else "text: identical" in done.stderr


def test_a_draft_model_with_k_0_is_said_to_be_inactive(smollm2: Path) -> None:
    done = slipstream("run", "-m", MODEL, "--draft", MODEL, "--k", "0", "--max-tokens", "2", "hi")
    assert done.returncode == 0
    assert "warning: a draft model is given, but k is 0" in done.stderr
    assert "drafting was off: the policy drafts nothing (k is 0, or it is off)" in done.stderr


def test_demo(smollm2: Path) -> None:
    done = slipstream("demo", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert found["model"] == MODEL and found["drafter"] == "suffix"
    assert len(found["rows"]) == 5 and all(set(row) >= ROW for row in found["rows"])
    assert all(row["plain_tps"] > 0 and row["identical"] in (True, False) for row in found["rows"])
    assert all(row["mismatches"] == 0 for row in found["rows"])
    assert found["provenance"]["models"]["target"]["sha256"].startswith("b179c952")
    assert all(row["kind"] in done.stdout for row in found["rows"])


def test_bench_uses_good_lines_names_bad_ones_and_writes_its_file(smollm2: Path, tmp_path: Path) -> None:
    work, out = tmp_path / "w.jsonl", tmp_path / "out.json"
    code = {"kind": "code", "prompt": REPEATS}
    chat = {"kind": "chat", "messages": [{"role": "user", "content": "Say hello"}]}
    work.write_text(f"{json.dumps(code)}\nnot json\n{json.dumps(chat)}\n")
    options = ("--workload", str(work), "--runs", "2", "--max-tokens", "8", "--out", str(out), "--json")
    done = slipstream("bench", "-m", MODEL, *options)
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert [row["kind"] for row in found["rows"]] == ["code", "chat"]
    assert all(ROW | {"interval"} <= set(row) for row in found["rows"])
    assert found["config"]["runs"] == 2 and found["config"]["engine"]["model"] == MODEL
    assert "line 2 is left out: not JSON" in done.stderr
    assert json.loads(out.read_text())["rows"] == found["rows"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "w.jsonl"]


def test_audit(smollm2: Path) -> None:
    done = slipstream("audit", "-m", MODEL, "--n", "1", "--max-tokens", "24", "--draws", "40", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = last_json(done.stdout)
    assert {"greedy text", "rejection: first token", "block: first token"} <= {c["name"] for c in found["checks"]}
    assert found["passed"] is True and found["false_alarm_rate"] == 0.001
    firsts = [c for c in found["checks"] if "second" not in c["name"]]
    assert len(firsts) == 4 and all(c["passed"] is True and c["verified"] > 0 for c in firsts)


def test_chat_keeps_its_cache_and_obeys_its_commands(smollm2: Path) -> None:
    said = "Hello\nWhat did I say?\n/reset\nHello\n/exit\nnever asked\n"
    done = slipstream("chat", "-m", MODEL, "--max-tokens", "6", "--json", stdin=said)
    assert done.returncode == 0, done.stderr
    turns = last_json(done.stdout)["turns"]
    assert [t["user"] for t in turns] == ["Hello", "What did I say?", "Hello"]
    assert turns[0]["usage"]["cached_tokens"] == 0
    assert turns[1]["usage"]["cached_tokens"] > turns[0]["usage"]["prompt_tokens"] - 1
    assert turns[2]["text"] == turns[0]["text"], "after a reset nothing is left of the first conversation"
    assert "prompt tokens cached" in done.stderr


def test_check_fits_and_does_not(smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    done = slipstream("check", "-m", MODEL, "--draft", MODEL, "--ctx", "1024", "--slots", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert found["fits"] is True and {row["model"] for row in found["rows"]} == {"target", "draft"}
    assert all(row[part] > 0 for row in found["rows"] for part in ("weights", "kv", "compute", "overhead"))
    assert "cut exactly" in found["rollback"]["target"]
    monkeypatch.setattr(memory, "available_memory", lambda: 200_000_000)
    assert main(["check", "-m", MODEL, "--json"]) == 1
    out, err = capsys.readouterr()
    assert last_json(out)["fits"] is False and last_json(out)["short"]["RAM"] > 0
    assert "hint: use a context of" in err


def test_doctor(smollm2: Path) -> None:
    done = slipstream("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert found["ok"] is True and set(found["probe"]["ms"]) == {"1", "4", "16"}
    assert set(found["probe"]["noise"]) == {"chain", "tree", "beside"}
    if not why_bits_differ():
        assert not any(found["probe"]["noise"].values()) and "bit for bit" in done.stdout
    assert found["machine"]["cores"] >= 1 and found["build"]["system_info"] and found["cache"]["free"] > 0
    assert found["versions"]["llama-cpp-python"] in done.stdout


def test_models_and_pull(smollm2: Path) -> None:
    listed = last_json(slipstream("models", "--json").stdout)["models"]
    assert {"name", "size", "quantisation", "licence", "installed", "drafts"} <= set(listed[0])
    assert {m["name"]: m["drafts"] for m in listed}["qwen2.5-coder-1.5b"] == ["qwen2.5-coder-0.5b"]
    done = slipstream("pull", MODEL)
    assert done.returncode == 0 and Path(done.stdout.strip()).samefile(smollm2)


# -- bad input: one message, exit code 2, no traceback ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "-m", "nowhere/model.gguf", "hi"], "no such file: nowhere/model.gguf"),
        (["run", "-m", "smolm2-135", "hi"], "did you mean smollm2-135m"),
        (["run", "-m", MODEL, "--draft", "sufix", "hi"], "drafters without a model: predicted, recycle, suffix, none"),
        (["run", "-m", MODEL, "--k", "-1", "hi"], "k is -1"),
        (["run", "-m", MODEL, "--k", "two", "hi"], "--k"),
        (["run", "-m", MODEL, "--ctx", "1000000", "hi"], "use --ctx 8192 or less"),
        (["run", "-m", MODEL, "--modle", "x", "hi"], "did you mean --model"),
        (["rum"], "did you mean 'run'"),
        (["run", "hi"], "no model is named"),
        (["run", "-m", MODEL, "--logit-bias", "12:3", "hi"], "not a logit bias: 12:3"),
        (["run", "-m", MODEL, "--logit-bias", "-3=1", "hi"], "not a logit bias: -3=1"),
        (["run", "-m", MODEL, "--logit-bias", "99999=1", "hi"], "ids go from 0 to 49151"),
        (["run", "-m", MODEL, "--temperature", "-1", "hi"], "temperature is -1"),
        (["run", "-m", MODEL, "--top-p", "1.5", "hi"], "top_p is 1.5"),
        (["run", "-m", MODEL, "--max-tokens", "-5", "hi"], "max_tokens is -5"),
        (["run", "-m", MODEL, "--verify", "exakt", "hi"], "did you mean exact"),
        (["run", "-m", MODEL, "--kv-type", "q9", "hi"], "unknown cache type: q9"),
        (["run", "-m", MODEL, ""], "the prompt is empty"),
        (["run", "-m", MODEL], "the prompt is empty"),
        (["run", "-m", MODEL, "--stop", "", "hi"], "a stop string is empty"),
        (["run", "-m", MODEL, "--draft", "none", "--compare", "hi"], "nothing to compare: no drafter was given"),
        (["bench", "-m", MODEL, "--workload", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["bench", "-m", MODEL, "--workload", os.devnull], "holds no usable prompt"),
        (["bench", "-m", MODEL, "--workload", os.devnull, "--out", "nowhere/x.json"], "cannot write nowhere/x.json"),
        (["check", "-m", MODEL, "--slots", "0"], "n_slots is 0"),
        (["audit", "-m", MODEL, "--k", "0"], "nothing to audit"),
    ],
)  # fmt: skip
def test_bad_input(smollm2: Path, args: list[str], words: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(args, words, capsys, monkeypatch)


@pytest.mark.parametrize("kind", ["truncated", "not a GGUF", "empty", "another vocabulary"])
def test_bad_files(smollm2: Path, tmp_path: Path, kind: str) -> None:
    bad = tmp_path / "bad.gguf"
    if kind == "truncated":
        bad.write_bytes(smollm2.read_bytes()[:4_000_000])
    elif kind == "another vocabulary":
        write_gguf(bad, *tiny_llama())
    else:
        bad.write_bytes(b"PK\x03\x04" * 100 if kind == "not a GGUF" else b"")
    pair = ("-m", MODEL, "--draft", str(bad)) if kind == "another vocabulary" else ("-m", str(bad))
    done = slipstream("run", *pair, "hi")
    assert done.returncode == 2 and done.stdout == ""
    assert_one_clear_error(done.stderr)
    assert ("different vocabularies" if kind == "another vocabulary" else "bad.gguf") in done.stderr
    assert "hint: " in done.stderr


@pytest.fixture
def wrong_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue whose one source delivers other bytes, and a cached file that was tampered with."""

    def download(repo: str, file: str, local_dir: Path) -> str:
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / file).write_bytes(b"x" * len(WHOLE))
        return str(local_dir / file)

    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    known = catalog_of(sources=(HubSource("owner/repo", "file.gguf"),))
    monkeypatch.setattr(sys.modules["slipstream.hub.resolve"], "builtin", lambda: known)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.gguf").write_bytes(b"y" * len(WHOLE))
    return tmp_path


def test_a_wrong_checksum_is_refused(wrong_source: Path, capsys: Any) -> None:
    assert main(["pull", "tiny"]) == 2
    err = capsys.readouterr().err
    assert_one_clear_error(err)
    assert "sha256" in err and "the catalogue says" in err
    assert main(["run", "-m", "tiny", "hi"]) == 2, "and it is not used either"


def test_a_full_disk_is_told(wrong_source: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    assert main(["pull", "tiny"]) == 2
    err = capsys.readouterr().err
    assert_one_clear_error(err)
    assert "not enough disk space" in err and "hint: free some space" in err


def test_a_model_larger_than_memory_is_refused(smollm2: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 10_000_000)
    assert main(["run", "-m", MODEL, "hi"]) == 2
    err = capsys.readouterr().err
    assert_one_clear_error(err)
    assert "do not fit in memory" in err and "hint: " in err


def test_a_crash_of_the_native_code_is_named_with_what_mends_it(
    smollm2: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = tmp_path / "crash"
    crash.write_text('#!/bin/sh\necho \'{"ms": {"1": 5.0}}\'\nkill -ILL $$\n')
    crash.chmod(0o755)
    monkeypatch.setattr(probe, "sys", SimpleNamespace(executable=str(crash)))
    assert main(["doctor", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "crashed (SIGILL) after the forward of 1" in err and "-fno-tree-dse" in err
    assert last_json(out)["ok"] is False
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))  # where no earlier probe is remembered
    assert main(["run", "-m", str(smollm2), "hi"]) == 2
    err = capsys.readouterr().err
    assert_one_clear_error(err)
    assert "SIGILL" in err and "-fno-tree-dse" in err


def test_an_unexpected_fault_is_one_line_unless_asked(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("slipstream.hub.models", broken)
    assert main(["models"]) == 1
    err = capsys.readouterr().err
    assert_one_clear_error(err)
    assert "ValueError: a fault" in err and "SLIPSTREAM_DEBUG=1" in err
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    assert main(["models"]) == 1
    assert "Traceback" in capsys.readouterr().err


# -- the terminal, signals, help ------------------------------------------------------------------------------------


def interrupt(args: Sequence[str], ready: Callable[[subprocess.Popen[bytes]], object]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that gets a real SIGINT once `ready` has returned."""
    command = [sys.executable, "-m", "slipstream", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        first = ready(child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    return child.returncode, (first if isinstance(first, bytes) else b"").decode() + out.decode(), err.decode()


def test_ctrl_c_keeps_the_text_so_far(smollm2: Path) -> None:
    story = ["run", "-m", MODEL, "--max-tokens", "4000", "--logit-bias", "2=-100", "Tell me a very long story."]
    code, out, err = interrupt(story, lambda child: child.stdout.read(8))  # type: ignore[union-attr]
    assert code == 130
    assert len(out) > 8 and "Traceback" not in err
    assert "stopped by Ctrl-C; the text so far is kept" in err and "tok/s" in err and "cancelled" in err


def test_ctrl_c_in_a_bench_prints_what_is_done(smollm2: Path, tmp_path: Path) -> None:
    work = tmp_path / "w.jsonl"
    work.write_text(json.dumps({"kind": "code", "prompt": REPEATS}))

    def one_is_done(child: subprocess.Popen[bytes]) -> None:
        while b"1/500" not in child.stderr.readline():  # type: ignore[union-attr]
            time.sleep(0.01)

    options = ["bench", "-m", MODEL, "--workload", str(work), "--runs", "500", "--max-tokens", "8", "--json"]
    code, out, err = interrupt(options, one_is_done)
    assert code == 130 and "Traceback" not in err
    found = last_json(out)
    assert found["interrupted"] is True and found["rows"][0]["kind"] == "code"


def in_terminal(**env: str) -> str:
    """What `run` writes to a terminal of its own."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "slipstream", "run", "-m", MODEL, "--raw", "--max-tokens", "12", REPEATS]
    clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm", **env}
    with subprocess.Popen(command, stdout=inside, stderr=inside, stdin=subprocess.DEVNULL, env=clean) as child:
        os.close(inside)
        seen = b""
        with suppress(OSError):  # what Linux says when the other end is closed
            while data := os.read(terminal, 4096):
                seen += data
        assert child.wait() == 0
    os.close(terminal)
    return seen.decode()


def test_colours_say_who_proposed_and_no_color_is_respected(smollm2: Path) -> None:
    coloured = in_terminal()
    assert "\x1b[32m" in coloured and "proposed by" in coloured
    assert "\x1b" not in in_terminal(NO_COLOR="1")


def test_every_command_has_help_with_an_example(capsys: Any) -> None:
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        out = capsys.readouterr().out
        assert f"Example: slipstream {command}" in out and "--json" in out


def test_help_is_light() -> None:
    code = (
        "import sys; from slipstream.cli.app import main; main(['--help']); main(['run', '--help'])\n"
        "print([m for m in ('numpy', 'llama_cpp', 'scipy', 'huggingface_hub', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(command in done.stdout for command in COMMANDS)
    assert slipstream("--version").stdout.strip().count(".") == 2
