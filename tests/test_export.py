"""The export: what each engine gets, what is left out, and that the engines themselves take it.

The last part needs other engines, which `scripts/check --engines` brings. Where they are missing those tests are
skipped, and fail when SLIPSTREAM_NEED_ENGINES is set.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from advice_sample import advice
from gguf_writer import tiny_llama, write_gguf
from slipstream.advise.export import ENGINES, Setup, export
from slipstream.advise.plan import File, Plan, write
from slipstream.cli.export import command
from slipstream.errors import InputError, UnknownName
from slipstream.hub.cache import sha256_of

TARGET, SMALL = Path("/models/my target.gguf"), Path("/models/it's small.gguf")
BOTH = Setup(TARGET, ("suffix",), SMALL, length=5)
LOOKUP = Setup(TARGET, ("suffix",), length=5)
MODEL = Setup(TARGET, (), SMALL, length=5)
PLAIN = Setup(TARGET)


def noted(setup: Setup, to: str, *words: str) -> bool:
    notes = export(to, setup).notes
    return any(all(word in note for word in words) for note in notes)


def keywords(text: str) -> dict[str, Any]:
    """Every keyword argument and attribute with a constant value in a program."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg and isinstance(node.value, ast.Constant):
            found[node.arg] = node.value.value
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found[ast.unparse(node.targets[0])] = node.value.value
    return found


# -- each engine's own words ----------------------------------------------------------------------------------------


def test_llama_server() -> None:
    made = export("llama-server", replace(BOTH, threads=4))
    assert made.argv == (
        "llama-server", "-m", str(TARGET), "-t", "4", "--spec-type", "ngram-simple,draft-simple",
        "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "5",
        "-md", str(SMALL), "--spec-draft-n-max", "5",
    )  # fmt: skip
    assert export("llama-server", LOOKUP).argv[3:] == (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "5",
    )  # fmt: skip
    drafts = ("--spec-type", "draft-simple", "-md", str(SMALL), "--spec-draft-n-max", "5")
    assert export("llama-server", MODEL).argv[3:] == drafts
    assert export("llama-server", PLAIN).argv == ("llama-server", "-m", str(TARGET))


def test_vllm() -> None:
    def config(setup: Setup) -> Any:
        argv = export("vllm", setup).argv
        assert argv[:3] == ("vllm", "serve", str(TARGET))
        return json.loads(argv[argv.index("--speculative-config") + 1]) if len(argv) > 3 else None

    assert config(MODEL) == {"method": "draft_model", "model": str(SMALL), "num_speculative_tokens": 5}
    assert config(LOOKUP) == {"method": "suffix", "num_speculative_tokens": 5}
    assert config(replace(LOOKUP, verify="block"))["rejection_sample_method"] == "block"
    assert config(PLAIN) is None
    assert config(BOTH) == config(MODEL) and noted(BOTH, "vllm", "suffix is left out", "one way")
    assert noted(MODEL, "vllm", "vllm-gguf-plugin") and noted(LOOKUP, "vllm", "arctic-inference")


def test_sglang_counts_the_token_that_is_verified_anyway() -> None:
    launch = ("python3", "-m", "sglang.launch_server", "--model-path", str(TARGET))
    assert export("sglang", MODEL).argv == (
        *launch, "--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(SMALL),
        "--speculative-num-steps", "5", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6",
    )  # fmt: skip
    ngram = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6")
    assert export("sglang", LOOKUP).argv == (*launch, *ngram) and noted(LOOKUP, "sglang", "CUDA")
    assert export("sglang", PLAIN).argv == launch


def test_transformers_sets_the_length_where_it_is_read() -> None:
    found = keywords(export("transformers", MODEL).text)
    assert found["assistant.generation_config.num_assistant_tokens"] == 5 and "num_assistant_tokens" not in found
    assert "assistant_model=assistant" in export("transformers", MODEL).text
    assert keywords(export("transformers", LOOKUP).text)["prompt_lookup_num_tokens"] == 5
    assert "torch.set_num_threads(3)" in export("transformers", replace(LOOKUP, threads=3)).text
    assert "torch" not in export("transformers", PLAIN).text.replace("transformers", "")
    assert noted(LOOKUP, "transformers", "accelerate")


def test_openvino() -> None:
    found = keywords(export("openvino", LOOKUP).text)
    assert found["prompt_lookup"] is True
    assert found["config.num_assistant_tokens"] == 5 and found["config.max_ngram_size"] == 3
    assert export("openvino", BOTH).text == export("openvino", LOOKUP).text
    assert noted(BOTH, "openvino", f"{SMALL.name} is left out") and noted(BOTH, "openvino", "must be converted")
    with pytest.raises(InputError, match="no drafting would be left"):
        export("openvino", MODEL)
    assert "num_assistant_tokens" not in export("openvino", PLAIN).text


def test_lm_studio_takes_a_draft_model_only() -> None:
    text = export("lm-studio", BOTH).text
    assert "lms.llm('my target')" in text and 'config={"draftModel": "it\'s small"}' in text
    assert noted(BOTH, "lm-studio", "suffix is left out", "can do nothing")
    assert noted(BOTH, "lm-studio", "lms import --copy", str(TARGET), str(SMALL))
    assert noted(BOTH, "lm-studio", "chooses the draft length itself")
    with pytest.raises(InputError, match="no drafting would be left") as caught:
        export("lm-studio", LOOKUP)
    assert "it has draft models" in caught.value.hint
    assert "draftModel" not in export("lm-studio", PLAIN).text


# -- what is common -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ENGINES)
@pytest.mark.parametrize("setup", [BOTH, PLAIN, replace(BOTH, names=("suffix", "recycle"))])
def test_all_is_quoted_and_nothing_else_is_on_stdout(to: str, setup: Setup) -> None:
    made = export(to, setup)
    if made.kind == "command":
        assert made.text.count("\n") == 1 and tuple(shlex.split(made.text)) == made.argv
    else:
        compile(made.text, "exported", "exec")
        strings = {n.value for n in ast.walk(ast.parse(made.text)) if isinstance(n, ast.Constant)}
        assert any(str(s) in (str(TARGET), TARGET.name, TARGET.stem) for s in strings)
    assert noted(setup, to, "recycle is left out") == ("recycle" in setup.names)
    assert json.loads(json.dumps(made.as_dict()))["to"] == to


@pytest.mark.parametrize("to", ENGINES)
def test_an_export_that_would_lose_the_draft_is_refused(to: str) -> None:
    for names in (("recycle",), ("predicted", "recycle")):
        with pytest.raises(InputError, match=r"recycle, so no drafting would be left") as caught:
            export(to, Setup(TARGET, names))
        assert "slipstream run" in caught.value.hint


@pytest.mark.parametrize("to", [e for e in ENGINES if e != "lm-studio"])
def test_the_draft_length_is_explained(to: str) -> None:
    assert noted(BOTH, to, "5 tokens are the best fixed length")
    assert noted(replace(BOTH, length=None), to, "nothing was measured", "4 tokens")
    assert noted(replace(BOTH, length=0), to, "no fixed draft length pays")
    assert not noted(PLAIN, to, "price")


def test_what_has_no_counterpart_is_said() -> None:
    assert noted(replace(MODEL, verify="typical"), "vllm", "--verify typical is left out")
    assert not noted(replace(MODEL, verify="block"), "vllm", "--verify")
    assert noted(replace(MODEL, verify="block"), "llama-server", "--verify block is left out")
    assert noted(replace(BOTH, threads=3), "openvino", "3 threads are left out")
    assert not noted(replace(MODEL, threads=3), "llama-server", "threads")
    assert noted(replace(PLAIN, off=True), "sglang", "plain decoding")


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="llama-serve") as caught:
        export("llama-serve", PLAIN)
    assert "llama-server" in caught.value.hint


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A target, and a draft model that was made here, so that it is known by its name."""
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "tuned").mkdir(parents=True)
    target, small = tmp_path / "a model.gguf", tmp_path / "home" / "tuned" / "quick.gguf"
    for file in (target, small):
        write_gguf(file, *tiny_llama())
    small.with_suffix(".json").write_text(json.dumps({"sha256": sha256_of(small)}))
    return target, small


def test_a_plan_is_exported_with_real_paths(pair: tuple[Path, Path], capsys: Any) -> None:
    target, small = pair
    plan = Plan.of(advice())

    def at(old: File, ref: str, file: Path) -> File:
        here = {"file": file.name, "size": file.stat().st_size, "sha256": sha256_of(file)}
        return old.model_copy(update={"model": ref, **here})

    files = {"target": at(plan.target, str(target), target), "draft_model": at(plan.target, "quick", small)}
    plan = plan.model_copy(update={"draft": "suffix,quick", **files})
    path = target.with_name("plan.toml")
    write(plan, path)
    assert command("llama-server", plan=path) == 0
    out, err = capsys.readouterr()
    argv = shlex.split(out)
    assert argv[:3] == ["llama-server", "-m", str(target)] and argv[argv.index("-md") + 1] == str(small)
    assert argv[-1] == str(plan.draft_length) and "warning" not in err
    assert "quick.gguf was made on this machine" in err
    target.write_bytes(target.read_bytes() + b"\0")
    command("llama-server", plan=path)
    assert "warning: plan.toml: a model.gguf had" in capsys.readouterr().err


def test_a_plan_that_is_off_is_exported_as_plain_decoding(pair: tuple[Path, Path], capsys: Any) -> None:
    target, _ = pair
    plan = Plan.of(advice(chosen="none"))
    file = plan.target.model_copy(update={"model": str(target)})
    write(plan.model_copy(update={"target": file}), target.with_name("plan.toml"))
    assert command("llama-server", plan=target.with_name("plan.toml")) == 0
    out, err = capsys.readouterr()
    assert shlex.split(out) == ["llama-server", "-m", str(target)] and "does not pay" in err


def test_without_a_plan_the_model_is_named(pair: tuple[Path, Path], capsys: Any) -> None:
    target, _ = pair
    assert command("llama-server", model=str(target), as_json=True) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["argv"][:5] == ["llama-server", "-m", str(target), "--spec-type", "ngram-simple"]
    assert made["kind"] == "command" and any("nothing was measured" in note for note in made["notes"])
    for wrong in ({}, {"model": str(target), "plan": target}, {"plan": target, "draft": "suffix"}):
        with pytest.raises(InputError, match="either a plan or a model"):
            command("llama-server", **wrong)  # type: ignore[arg-type]


# -- the engines themselves -----------------------------------------------------------------------------------------

REPEATS = "one two three four one two three four one two three four one two"


def need(there: object, what: str) -> None:
    if not there:
        message = f"{what} is not installed: `scripts/check --engines` brings it"
        pytest.fail(message) if os.environ.get("SLIPSTREAM_NEED_ENGINES") else pytest.skip(message)


def need_modules(*names: str) -> None:
    for name in names:
        need(importlib.util.find_spec(name), name)


@pytest.fixture
def odd_place(smollm2: Path, tmp_path: Path) -> Path:
    """The embedded model in a folder whose name a careless command would break at."""
    place = tmp_path / "it's here; $HOME"
    place.mkdir()
    (place / smollm2.name).symlink_to(smollm2)
    return place / smollm2.name


def llama_server() -> Path:
    """The binary on PATH; `scripts/check --engines` builds one."""
    found = shutil.which("llama-server")
    need(found, "llama-server")
    return Path(str(found))


@contextmanager
def serving(line: str, binary: Path) -> Iterator[httpx.Client]:
    """A shell runs the exported line as it stands, with a port added; ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = f"{binary.parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["sh", "-c", f"exec {line.strip()} --host 127.0.0.1 --port {port} -c 1024 -np 1"]
    server = subprocess.Popen(shell, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            for _ in range(1200):
                if server.poll() is not None:
                    assert server.stdout is not None
                    pytest.fail("llama-server ended: " + server.stdout.read().decode("utf-8", "replace")[-2000:])
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            yield client
    finally:
        server.kill()
        server.communicate()


def complete(client: httpx.Client, prompt: str) -> dict[str, Any]:
    request = {"prompt": prompt, "n_predict": 24, "temperature": 0, "seed": 1}
    answer: dict[str, Any] = client.post("/completion", json=request).raise_for_status().json()
    return answer


def test_llama_server_runs_what_is_exported(odd_place: Path) -> None:
    binary = llama_server()
    made = export("llama-server", Setup(odd_place, ("suffix",), length=4, threads=2))
    with serving(made.text, binary) as client:
        answer = complete(client, REPEATS)
    timings = answer["timings"]
    assert answer["content"].strip().startswith("three four") and timings["predicted_n"] == 24
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 0, "it drafted, by the exported kind"


def test_llama_server_runs_plainly_what_is_off(odd_place: Path) -> None:
    binary = llama_server()
    with serving(export("llama-server", Setup(odd_place, off=True)).text, binary) as client:
        answer = complete(client, REPEATS)
    assert answer["content"].strip().startswith("three four") and not answer["timings"].get("draft_n")


@pytest.mark.large
def test_llama_server_drafts_with_the_exported_model() -> None:
    binary = llama_server()
    setup = replace(Setup.named("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"), length=3)
    with serving(export("llama-server", setup).text, binary) as client:
        timings = complete(client, REPEATS)["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 0


def ask(made: Any, folder: Path, prompt: str) -> str:
    """What the exported program prints."""
    file = folder / "exported.py"
    file.write_text(made.text)
    run = [sys.executable, str(file), prompt]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(run, capture_output=True, text=True, env=offline, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_transformers_knows_the_names() -> None:
    need_modules("transformers")
    from transformers import GenerationConfig  # type: ignore[import-not-found,unused-ignore]

    known = vars(GenerationConfig()) | GenerationConfig._get_default_generation_params()
    for setup in (LOOKUP, MODEL):
        for name in keywords(export("transformers", setup).text):
            if name in ("gguf_file", "return_tensors", "skip_special_tokens", "tokenize", "add_generation_prompt"):
                continue  # of the loader and the tokenizer
            assert name.removeprefix("assistant.generation_config.") in known, name


WORDS = "Repeat these words: one two three four one two three four"


@pytest.mark.large
@pytest.mark.parametrize("draft", [False, True], ids=["lookup", "draft"])
def test_transformers_runs_what_is_exported(draft: bool, odd_place: Path, tmp_path: Path) -> None:
    need_modules("torch", "transformers", "gguf", "accelerate")
    setup = Setup(odd_place, () if draft else ("suffix",), odd_place if draft else None, length=4, threads=2)
    assert "three" in ask(export("transformers", setup), tmp_path, WORDS)


def test_openvino_runs_what_is_exported(odd_place: Path, tmp_path: Path) -> None:
    need_modules("openvino_genai")
    assert "three" in ask(export("openvino", Setup(odd_place, ("suffix",), length=4)), tmp_path, WORDS)
