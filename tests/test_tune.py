"""A tuned draft model: what is predicted of it is what happens, and whatever is done to it, the text stays the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import assert_own
from slipstream.advise import tune
from slipstream.advise.compare import compare
from slipstream.advise.measure import Work
from slipstream.advise.rehearse import Script
from slipstream.advise.replay import Forecast
from slipstream.advise.scale import Scale
from slipstream.cli.app import main
from slipstream.core.ports import Model
from slipstream.core.types import SamplingParams
from slipstream.engine import Engine
from slipstream.errors import ChecksumError, DiskShortage, InputError, ModelFileError, UnknownName
from slipstream.hub import models, resolve, tuned
from slipstream.models.gguf import read_header
from slipstream.models.llamacpp.quantize import Recipe, layers_can_go, quantize, spans

SAMPLE = "The days of the week are Monday, Tuesday, Wednesday,"


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def kept(name: str, data: bytes = b"GGUF and more", **facts: Any) -> Path:
    with tuned.workshop(1) as folder:
        (folder / "x").write_bytes(data)
        return tuned.keep(name, folder / "x", {"target": "smollm2-135m", "recipe": "q4_0", **facts})


def test_what_is_kept_is_found_by_its_name(home: Path) -> None:
    path = kept("fast-1.5b", draft="smollm2-135m", licence="Apache-2.0", quantisation="Q4_0")
    assert resolve("fast-1.5b") == path == home / "tuned" / "fast-1.5b.gguf"
    assert [p.name for p in (home / "tuned").iterdir() if p.is_dir()] == [], "the workshop is gone"
    listed = {m.name: m for m in models()}
    assert (
        listed["fast-1.5b"].installed and listed["fast-1.5b"].size == 13 and listed["fast-1.5b"].quantisation == "Q4_0"
    )
    assert "q4_0" in listed["fast-1.5b"].description and listed["fast-1.5b"].licence == "Apache-2.0"
    assert "fast-1.5b" in listed["smollm2-135m"].drafts and "fast-1.5b" not in listed["gemma-3-270m"].drafts
    kept("fast-1.5b", b"another")
    assert resolve("fast-1.5b").read_bytes() == b"another"
    with pytest.raises(UnknownName, match=r"unknown model: fast-1\.5") as e:
        resolve("fast-1.5")
    assert "fast-1.5b" in e.value.hint


def test_a_damaged_file_is_not_used(home: Path) -> None:
    path = kept("mine")
    path.write_bytes(b"something else")
    with pytest.raises(ChecksumError, match="not the file that was made"):
        resolve("mine")
    path.with_suffix(".json").write_text("{")
    with pytest.raises(UnknownName):
        resolve("mine")


@pytest.mark.parametrize("name", ["smollm2-135m", "a/b", "../up", "x.gguf", "", "-x", "a b", "hf:x"])
def test_names_that_a_made_model_cannot_have(home: Path, name: str) -> None:
    with pytest.raises(InputError):
        tuned.check_name(name)
    with pytest.raises(InputError):
        kept(name)
    assert not list(home.rglob("*.gguf"))


def test_what_a_killed_process_left_is_removed(home: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, alive = (home / "tuned" / f".making-{pid}-x" for pid in (child.pid, os.getpid()))
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "1.gguf").write_bytes(b"GGUF")
    with tuned.workshop(1):
        assert alive.exists() and not dead.exists()


def test_no_room_for_a_workshop(home: Path) -> None:
    with pytest.raises(DiskShortage, match="not enough disk space"), tuned.workshop(1 << 60):
        pass
    assert list((home / "tuned").iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--draft", "suffix"), "suffix is not a draft model"),
        (("--draft", "smollm2-135m", "--name", "gemma-3-270m"), "a model of the catalogue"),
        (("--draft", "smollm2-135m", "--name", "suffix"), "the name of a drafter"),
        (("--draft", "smollm-135m"), "unknown model: smollm-135m"),
        (("--draft", "smollm2-135m", "--workload", "no-such.jsonl"), "cannot read no-such.jsonl"),
    ],
)
def test_refusals(args: tuple[str, ...], message: str, smollm2: Path, capsys: Any) -> None:
    assert main(["tune-draft", "-m", str(smollm2), *args]) == 2
    err = capsys.readouterr().err
    assert message in err and "hint: " in err and "Traceback" not in err


# -- real files -----------------------------------------------------------------------------------------------------


def test_recipes_say_what_they_are() -> None:
    assert str(Recipe()) == "as given" and Recipe().as_given
    assert str(Recipe("q4_0", embedding="q8_0", drop=(3, 4, 5, 9))) == "q4_0, embedding q8_0, without layers 3-5 9"
    assert spans(()) == ""
    with pytest.raises(UnknownName, match="unknown quantisation: q4_o") as e:
        Recipe("q4_o")
    assert "q4_0" in e.value.hint


def test_a_file_is_requantised_and_cut(smollm2: Path, tmp_path: Path) -> None:
    before = read_header(smollm2)
    quantize(smollm2, tmp_path / "small.gguf", Recipe("q4_0", embedding="q8_0", drop=(9, 4, 5)))
    after = read_header(tmp_path / "small.gguf")
    assert after.n_layers == before.n_layers - 3 and after.quantization == "Q4_0"
    assert {t.type.name for t in after.tensors if len(t.shape) > 1} == {"Q4_0", "Q8_0"}
    assert next(t for t in after.tensors if t.name == "token_embd.weight").type.name == "Q8_0"
    assert max(t.layer for t in after.tensors if t.layer is not None) == after.n_layers - 1
    quantize(smollm2, tmp_path / "cut.gguf", Recipe(drop=(9,)))
    same = {t.type.name for t in read_header(tmp_path / "cut.gguf").tensors}
    assert same == {t.type.name for t in before.tensors}
    with Engine.open(str(tmp_path / "small.gguf"), None, n_ctx=64) as engine:
        assert len(engine.generate("One two", max_tokens=4, ignore_end=True).ids) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gguf", "small.gguf"]


def test_what_cannot_be_requantised_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError, match="could not be written as q4_0"):
        quantize(tmp_path / "x.gguf", tmp_path / "y.gguf", Recipe("q4_0"))
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_layers_go_only_where_all_are_alike(smollm2: Path) -> None:
    header = read_header(smollm2)
    assert layers_can_go(header)
    arch, n = header.architecture, header.n_layers
    for key, value in (
        ("attention.head_count_kv", np.full(n, 3)),
        ("leading_dense_block_count", 1),
        ("nextn_predict_layers", 1),
    ):
        assert not layers_can_go(replace(header, metadata={**header.metadata, f"{arch}.{key}": value}))
    assert not layers_can_go(
        replace(header, metadata={**header.metadata, "general.architecture": "mamba", "mamba.block_count": n})
    )


def fixed_price(self: Scale, model: Model, sizes: Any, all_rows: bool, rounds: int) -> Callable[[int], float]:
    """A target with a flat price, and variants that are cheaper than the file as given."""
    made = "making" in str(getattr(model, "path", ""))
    return lambda n: 0.1 if all_rows else 0.002 if made else 0.09


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scale, "price", fixed_price)
    monkeypatch.setattr("slipstream.models.llamacpp.probe.ensure", lambda *args: None)  # a child process each


@pytest.fixture
def listener(smollm2: Path) -> Iterator[Engine]:
    with Engine.open(str(smollm2), None, n_ctx=256) as engine:
        yield engine


def texts_of(engine: Engine, max_tokens: int = 24) -> list[Script]:
    return list(tune.write(engine, [Work("list", SAMPLE), Work("chat", "Say hello to a cat.")], max_tokens))


def test_tuning_measures_each_variant_once_and_keeps_one_file(
    listener: Engine, home: Path, tmp_path: Path, prices: None
) -> None:
    texts = texts_of(listener)
    assert [t.kind for t in texts] == ["list", "chat"]
    header = read_header(resolve(str(listener.model.path)))  # type: ignore[attr-defined]
    folder = tmp_path / "making"
    folder.mkdir()
    tuning = tune.Tuning(header, texts, listener, folder)
    given = tuning.measure(Recipe())
    assert given is not None and given.agreement == 1.0 and given.draft_s == 0.09, "a model agrees with itself"
    q4 = tuning.measure(Recipe("q4_0"))
    assert q4 is not None and q4.size < given.size and q4.agreement < 1 and q4.speedup > given.speedup
    assert tuning.best is q4 and tuning.file.exists()
    assert tuning.measure(Recipe("q4_0")) is None, "the same again"
    half = tuning.measure(Recipe("q4_0", drop=tuple(range(4, 20))))
    assert half is not None and half.agreement < q4.agreement and half.n_layers == 14
    assert [m.recipe for m in tuning.done] == [given.recipe, q4.recipe, half.recipe]
    assert [folder / p.name for p in folder.iterdir()] == [tuning.file], "others' files are gone"
    assert set(q4.forecasts) == {"list", "chat"} and json.dumps(q4.as_dict())
    tuning.stopped = lambda: True
    assert tuning.measure(Recipe("q8_0")) is None and len(list(folder.iterdir())) == 1


def test_leaving_layers_out_goes_on_while_it_helps(
    listener: Engine, home: Path, tmp_path: Path, prices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a made-up model whose layers 4 and 5 do nothing, 8 and 9 next to nothing, and all others much."""
    harm = {4: 0.0, 5: 0.0, 8: 0.01, 9: 0.01, 12: 0.02, 13: 0.02}

    def made_up(self: tune.Tuning, recipe: Recipe) -> tune.Measured:
        lost = sum(harm.get(i, 0.2) for i in recipe.drop)
        speed = 2 + 0.1 * len(recipe.drop) - 8 * lost
        f = replace(Forecast(0, 0.0, 1, 1.0, 1.0), plain_s=speed, seconds=1.0)
        found = tune.Measured(recipe, "Q4_0", 30, 1, 0.01, max(0.0, 1 - lost), {"all": f})
        if self.best is None or found.speedup > self.best.speedup:
            self.best = found
        return found

    monkeypatch.setattr(tune.Tuning, "measure", made_up)
    tuning = tune.Tuning(read_header(listener.model.path), texts_of(listener, 4), listener, tmp_path)  # type: ignore[attr-defined]
    tuning.measure(Recipe("q4_0"))
    tried = [m.recipe.drop for m in tuning.shorter()]
    assert tried[:2] == [(2, 3), (4, 5)] and max(max(d) for d in tried) < 28
    assert tried[-2:] == [(4, 5, 8, 9), (4, 5, 8, 9, 12, 13)], "the second one was no gain, so it ends"
    assert tuning.best is not None and tuning.best.recipe == Recipe("q4_0", drop=(4, 5, 8, 9))


def test_the_command_keeps_a_model_that_changes_no_text(
    smollm2: Path, home: Path, tmp_path: Path, prices: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "recipes", lambda header: [Recipe(), Recipe("iq4_xs"), Recipe("q4_0")])
    make_it = tune.quantize

    def some_fail(source: Path, destination: Path, recipe: Recipe, threads: int) -> None:
        make_it(source if recipe.quantisation == "q4_0" else tmp_path / "none", destination, recipe, threads)

    monkeypatch.setattr(tune, "quantize", some_fail)
    work = tmp_path / "work.jsonl"
    work.write_text(json.dumps({"kind": "list", "prompt": SAMPLE}) + "\n{}\n")
    args = ["-m", str(smollm2), "--draft", str(smollm2), "--workload", str(work), "--max-tokens", "16", "--no-layers"]
    assert main(["tune-draft", *args, "--name", "quick", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert result["name"] == "quick" and [v["recipe"] for v in result["variants"]] == ["as given", "q4_0"]
    assert "kept as quick (q4_0)" in out and "line 2 is left out" in err and "list" in out
    assert "warning: left out: none could not be written as iq4_xs" in err, "one that fails costs only itself"
    path = resolve("quick")
    assert str(path) == result["path"] and read_header(path).quantization == "Q4_0"
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["provenance"]["models"]["draft"]["sha256"] and facts["measured"][1]["agreement"] <= 1
    assert sorted(p.suffix for p in path.parent.iterdir() if "verified" not in p.name) == [".gguf", ".json"]
    assert main(["check", "-m", str(smollm2), "--draft", "quick"]) == 0
    assert "quick" in models()[-1].name
    same_text(str(smollm2), "quick", 48)


def same_text(target: str, draft: str, max_tokens: int) -> None:
    """Plain and drafted text, greedy and sampled, are the same, or part at a near tie; and something was drafted."""
    with Engine.open(target, draft, n_ctx=512, k=4) as engine:
        accepted = 0
        for sampling in (SamplingParams(), SamplingParams(temperature=0.8, seed=5)):
            prompt = engine.tokenizer.encode(SAMPLE)
            plain = engine.generate(prompt, max_tokens=max_tokens, sampling=sampling, speculative=False)
            drafted = engine.generate(prompt, max_tokens=max_tokens, sampling=sampling)
            assert_own(compare(engine, prompt, sampling, plain.ids, drafted.ids))
            accepted += drafted.stats.accepted
        assert accepted > 0


def test_ctrl_c_keeps_what_was_complete(
    smollm2: Path, home: Path, tmp_path: Path, prices: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while the third variant is measured: the second is kept, and nothing lies about."""
    monkeypatch.setattr(tune, "recipes", lambda header: [Recipe(), Recipe("q4_0"), Recipe("q8_0"), Recipe("f16")])
    judge_it = tune.Tuning._judge

    def interrupted(self: tune.Tuning, recipe: Recipe, header: Any) -> Any:
        if recipe == Recipe("q8_0"):
            os.kill(os.getpid(), signal.SIGINT)
        return judge_it(self, recipe, header)

    monkeypatch.setattr(tune.Tuning, "_judge", interrupted)
    work = tmp_path / "work.jsonl"
    work.write_text(json.dumps({"prompt": SAMPLE}))
    args = ["-m", str(smollm2), "--draft", str(smollm2), "--workload", str(work), "--max-tokens", "12"]
    assert main(["tune-draft", *args, "--name", "half-way", "--json"]) == 130
    out, err = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert result["interrupted"] and [v["recipe"] for v in result["variants"]] == ["as given", "q4_0"]
    assert read_header(resolve("half-way")).quantization == "Q4_0" and "stopped by Ctrl-C" in err
    assert not [p for p in (home / "tuned").iterdir() if p.is_dir()]


def test_nothing_better_is_the_answer_no(
    smollm2: Path, home: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scale, "price", lambda self, model, sizes, all_rows, rounds: lambda n: 1.0 * n)
    monkeypatch.setattr(tune, "recipes", lambda header: [Recipe(), Recipe("q4_0")])
    work = tmp_path / "work.jsonl"
    work.write_text(json.dumps({"prompt": SAMPLE}))
    args = ["-m", str(smollm2), "--draft", str(smollm2), "--workload", str(work), "--max-tokens", "8", "--no-layers"]
    assert main(["tune-draft", *args]) == 1
    assert "nothing is faster" in capsys.readouterr().out
    assert not list((home / "tuned").iterdir())


@pytest.mark.large
def test_the_qwen_pair_with_a_requantised_and_shortened_draft(tmp_path: Path) -> None:
    small = tmp_path / "small.gguf"
    quantize(resolve("qwen2.5-coder-0.5b"), small, Recipe("q4_0", drop=(12, 13)))
    same_text("qwen2.5-coder-1.5b", str(small), 48)
