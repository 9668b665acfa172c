"""A matrix of quantisations: agreement and divergence are those of direct computation, and no more is claimed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from scipy.special import log_softmax

from gguf_writer import tiny_llama, write_gguf
from helpers import markov_table
from slipstream.advise import divergence, variants
from slipstream.advise.divergence import Compared, Divergence, Reference, by_kind, kept, summed
from slipstream.advise.matrix import Matrix, Rules
from slipstream.advise.matrix_rows import Row, nats, share, verdict
from slipstream.advise.rehearse import Script
from slipstream.advise.scale import Scale
from slipstream.advise.variants import Variant, Way
from slipstream.cli import matrix as command
from slipstream.core.ports import Model
from slipstream.errors import DiskShortage, InputError, ModelFileError, SlipstreamError, UnknownName, UsageError
from slipstream.models.gguf import read_header
from slipstream.models.toy import Table, ToyModel
from virtual import curve

N = 12
OURS = markov_table(N, order=2, seed=3, spread=2.0)
THEIRS: Table = lambda past: OURS(past) + 0.8 * markov_table(N, order=2, seed=8)(past)  # noqa: E731


def scripts() -> list[Script]:
    rng = np.random.default_rng(5)
    return [
        Script(kind, rng.integers(0, N, n).tolist(), rng.integers(0, N, m).tolist())
        for kind, n, m in (("a", 3, 50), ("b", 1, 7), ("a", 70, 33), ("b", 2, 1))
    ]


def toy(table: Table, n_ctx: int = 256) -> ToyModel:
    return ToyModel(table, N, n_ctx, n_batch=64)


def direct(script: Script, n: int | None = None) -> tuple[list[bool], list[float]]:
    """In double precision, one token after the other."""
    same, kl = [], []
    for i in range(len(script.said) if n is None else n):
        past = [*script.prompt, *script.said[:i]]
        p, q = (log_softmax(table(past).astype(np.float64)) for table in (OURS, THEIRS))
        same.append(bool(p.argmax() == q.argmax()))
        kl.append(float((np.exp(p) * (p - q)).sum()))
    return same, kl


# -- agreement and divergence --------------------------------------------------------------------------------------


def test_agreement_and_divergence_are_those_of_direct_computation(tmp_path: Path) -> None:
    texts = scripts()
    reference = Reference(toy(OURS), texts, tmp_path / "rows")
    found = reference.compare(toy(THEIRS))
    assert reference.complete and found is not None and [t.kind for t in found] == ["a", "b", "a", "b"]
    for script, text in zip(texts, found, strict=True):
        same, kl = direct(script)
        assert text.same.tolist() == same
        np.testing.assert_allclose(text.kl, kl, rtol=2e-3, atol=1e-5)
    assert 0 < summed(found).agreement < 1 and summed(found).kl > 0.01  # type: ignore[union-attr]


def test_the_same_file_agrees_on_everything_and_diverges_by_nothing(tmp_path: Path) -> None:
    found = Reference(toy(OURS), scripts(), tmp_path / "rows").compare(toy(OURS))
    assert found is not None and summed(found) == Divergence(91, 1.0, 0.0)


def test_what_a_kept_row_loses_is_nothing_to_speak_of() -> None:
    """Of a wide vocabulary with large logits, as real ones are."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((8, 50_000)) * 4 + 15).astype(np.float32)
    moved = logits + 0.3 * rng.standard_normal(logits.shape).astype(np.float32)
    p, q = (log_softmax(rows.astype(np.float64), axis=1) for rows in (logits, moved))
    exact = (np.exp(p) * (p - q)).sum(axis=1)
    assert np.abs(divergence.divergence(kept(logits), kept(moved)) - exact).max() < 2e-4 < exact.min() / 50
    assert (divergence.divergence(kept(logits), kept(logits)) == 0).all()


def test_what_is_impossible_weighs_nothing() -> None:
    rows = np.array([[0, -1e6, 1], [0, 1, -1e6]], np.float32)
    assert 0 < divergence.divergence(kept(rows[:1]), kept(rows[:1] + np.array([[0, 0, 1]], np.float32)))[0] < 1
    never = divergence.divergence(kept(rows[:1]), kept(rows[1:]))[0]
    assert 1000 < never < np.inf, "the other never says what is likely"


def test_a_text_that_fills_the_context_is_read_up_to_there(tmp_path: Path) -> None:
    texts = [*scripts(), Script("c", [1] * 95, [2] * 30), Script("c", [1] * 120, [2, 3])]
    found = Reference(toy(OURS, 100), texts, tmp_path / "rows").compare(toy(THEIRS, 100))
    assert found is not None and [len(t.kl) for t in found] == [50, 7, 30, 1, 5, 0]
    assert found[4].same.tolist() == direct(texts[4], 5)[0]
    assert set(by_kind(found)) == {"a", "b", "c"} and by_kind(found)["c"].tokens == 5


def test_only_the_same_vocabulary_and_context_can_be_compared(tmp_path: Path) -> None:
    reference = Reference(toy(OURS), scripts(), tmp_path / "rows")
    for other in (ToyModel(OURS, N + 1, 256), toy(OURS, 80)):
        with pytest.raises(UsageError):
            reference.compare(other)


def test_a_pass_can_be_stopped(tmp_path: Path) -> None:
    calls = iter(range(100))
    assert not Reference(toy(OURS), scripts(), tmp_path / "a", lambda: next(calls) > 1).complete
    whole = Reference(toy(OURS), scripts(), tmp_path / "b")
    assert whole.compare(toy(THEIRS), lambda: True) is None


def test_kinds_are_weighed_by_their_tokens() -> None:
    texts = [
        Compared("a", np.array([True, False]), np.array([0.2, 0.4])),
        Compared("b", np.array([True]), np.array([0.0])),
        Compared("a", np.array([True, True]), np.array([0.0, 0.2])),
        Compared("c", np.empty(0, bool), np.empty(0)),
    ]
    kinds = by_kind(texts)
    assert set(kinds) == {"a", "b"} and kinds["a"].as_dict() == {
        "tokens": 4,
        "agreement": 0.75,
        "kl": pytest.approx(0.2),
    }
    total = summed(texts)
    assert total is not None and total.agreement == 0.8 and total.kl == pytest.approx(0.16)
    assert summed([]) is None


def test_the_disk_that_rows_need(tmp_path: Path) -> None:
    Reference(toy(OURS), scripts(), tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size == divergence.space(N, 91)


# -- sentences -----------------------------------------------------------------------------------------------------

PLAIN = Row("Q8_0", "none", 10.0, 1.0, 1.0, True, True, 1.02, None, 1000, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Q8_0: the reference"),
        (
            {"target": "Q4_0", "over_reference": 1.204, "text": Divergence(612, 0.94, 0.0312), "memory": 880},
            "Q4_0: 1.20x as fast, agrees on 94 % of 612 greedy tokens, 0.031 nats per token; memory -12 %",
        ),
        (
            {"target": "Q4_0", "over_reference": 1.04, "text": Divergence(612, 0.9999, 0.0001), "memory": 1002},
            "Q4_0: as fast, as far as can be told, agrees on 99.9 % of 612 greedy tokens, under 0.001 nats per token; "
            "the same memory",
        ),
        (
            {"target": "Q4_0", "over_reference": 0.86, "spread": 1.2, "text": Divergence(612, 0.5, 0.5)},
            "Q4_0: as fast, as far as can be told, agrees on 50 % of 612 greedy tokens, 0.500 nats per token; "
            "the same memory",
        ),
        (
            {"draft": "suffix", "over_reference": 1.9, "measured": False, "acceptance_rate": 0.5, "memory": 1500},
            "Q8_0 with suffix: 1.90x as fast (predicted), the same text; memory +50 %",
        ),
        (
            {"draft": "d", "measured": False, "memory": 1500},
            "Q8_0 with d: as fast, as far as can be told (predicted: nothing would be drafted), the same text; "
            "memory +50 %",
        ),
        (
            {"target": "Q2_K", "over_reference": 0.5, "in_turn": False, "text": Divergence(9, 1.0, 0.0)},
            "Q2_K: 0.50x as fast, not timed in turn with the reference, agrees on 100 % of 9 greedy tokens, 0 nats per "
            "token; the same memory",
        ),
    ],
)  # fmt: skip
def test_a_row_says_no_more_than_was_measured(changes: dict[str, Any], sentence: str) -> None:
    assert verdict(replace(PLAIN, **changes), PLAIN) == sentence


def test_all_and_nothing_are_never_rounded_to() -> None:
    assert [share(x) for x in (1.0, 0.9999, 0.995, 0.994, 0.5, 0.004, 0.00001, 0.0)] == [
        "100 %", "99.9 %", "99.5 %", "99 %", "50 %", "0.4 %", "0.1 %", "0 %",
    ]  # fmt: skip
    assert [nats(x) for x in (0, 1e-9, 0.0006, 1.23456)] == ["0", "under 0.001", "0.001", "1.235"]


# -- files ---------------------------------------------------------------------------------------------------------


def tiny(folder: Path, name: str, kind: str = "Q4_0", layers: int = 2, tokens: str = "t") -> Path:
    metadata, tensors = tiny_llama(layers)
    metadata["tokenizer.ggml.tokens"] = [f"{tokens}{i}" for i in range(64)]
    metadata["general.file_type"] = {"Q4_0": 2, "Q8_0": 7, "F16": 1}[kind]
    tensors = [(n, shape, kind if len(shape) > 1 else t) for n, shape, t in tensors]
    (folder / name).parent.mkdir(exist_ok=True)
    return write_gguf(folder / name, metadata, tensors)


def test_files_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    names = ("a.gguf", "b.gguf", "c.gguf", "x/b.gguf")
    a, b, c, d = (
        read_header(tiny(tmp_path, n, k)) for n, k in zip(names, ("Q8_0", "Q4_0", "F16", "Q4_0"), strict=True)
    )
    assert [v.label for v in variants.given([a, b, c, a])] == ["Q8_0", "Q4_0", "F16"]
    assert [v.label for v in variants.given([a, b, d])] == ["Q8_0", "b (2)", "b (3)"]
    found = variants.given([b, c, a])
    assert variants.reference_of([*found, Variant("F16 from Q4_0", c, "Q4_0", "Q4_0")]).label == "F16"
    assert found[0].bits == pytest.approx(4.5, rel=0.03) and found[1].bits == pytest.approx(16, rel=0.03)
    assert not found[0].note and not Variant("Q4_0 from F16", b, "F16", "F16").note
    assert "lost precision twice" in Variant("Q4_0 from Q8_0", b, "Q8_0", "Q8_0").note


def test_types_are_known_ones() -> None:
    assert variants.types("Q4_0, q8_0,,Q4_0") == ["q4_0", "q8_0"] and variants.types("") == []
    with pytest.raises(UnknownName, match="unknown quantisation: Q4_O") as e:
        variants.types("q4_o")
    assert "Q4_0" in e.value.hint


def test_a_target_keeps_its_output_finer_and_fits_in_the_space_asked_for(smollm2: Path, tmp_path: Path) -> None:
    source = Variant("Q4_1", read_header(smollm2))
    for kind, output in (("q4_0", "Q8_0"), ("q8_0", "Q8_0")):  # rows of 576 do not divide by 256
        made = variants.make(source, kind, tmp_path, target=True)
        types = {t.name: t.type.name for t in made.header.tensors}
        assert types["token_embd.weight"] == output and types["blk.0.ffn_up.weight"] == kind.upper()
        assert made.label == f"{kind.upper()} from Q4_1" and made.header.file_size <= variants.space(
            source.header, [kind]
        )
    draft = variants.make(source, "q4_0", tmp_path, target=False)
    assert {t.type.name for t in draft.header.tensors if len(t.shape) > 1} == {"Q4_0"}
    assert (draft.label, draft.source, draft.made_of) == ("Q4_1 as Q4_0", "Q4_1", "Q4_1")
    untied = replace(
        source.header, tensors=(*source.header.tensors, replace(source.header.tensors[0], name="output.weight"))
    )
    assert variants.recipe(untied, "q4_k", True).output == "q8_0"


# -- what is left out ----------------------------------------------------------------------------------------------


def test_what_cannot_be_compared_is_left_out_with_the_reason(tmp_path: Path) -> None:
    big, small, deep = (
        Variant(name, read_header(tiny(tmp_path, f"{name}.gguf", kind, layers)))
        for name, kind, layers in (("big", "Q8_0", 2), ("small", "Q4_0", 2), ("deep", "Q4_0", 3))
    )
    strange = Variant("strange", read_header(tiny(tmp_path, "strange.gguf", tokens="s")))
    ways = [Way("suffix", ("suffix",)), Way("deep", (), deep), Way("strange", ("suffix",), strange)]
    rules = Rules([small, big, deep, strange], ways, 1)
    assert rules.reference is big
    assert set(rules.needed) == {(t, w) for t in ("big", "small") for w in ("suffix", "deep")}
    assert "n_layers 3, not 2" in rules.skipped["deep", "suffix"]
    assert "different vocabularies" in rules.skipped["strange", "suffix"]
    assert "different vocabularies" in rules.skipped["small", "strange"]
    assert rules.needed["small", "deep"] > rules.needed["small", "suffix"] > small.header.file_size
    assert rules.beside_reference(small)


def test_what_does_not_fit_in_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big, small = (Variant(k, read_header(tiny(tmp_path, f"{k}.gguf", k))) for k in ("Q8_0", "Q4_0"))
    ways = [Way("suffix", ("suffix",)), Way("small", (), small)]
    roomy = Rules([big, small], ways, 1)
    room = roomy.needed["Q8_0", "suffix"] + 1
    monkeypatch.setattr("slipstream.models.memory.available_memory", lambda: room)
    rules = Rules([big, small], ways, 1)
    assert set(rules.needed) == {("Q8_0", "suffix"), ("Q4_0", "suffix")}
    assert (
        rules.skipped["Q8_0", "small"].startswith("does not fit in memory: ")
        and "RAM" in rules.skipped["Q8_0", "small"]
    )
    assert not rules.beside_reference(small)


# -- the command ---------------------------------------------------------------------------------------------------


def run(*args: str) -> Any:
    app = typer.Typer()
    app.command()(command.command)
    return app(list(args), standalone_mode=False)


def last_json(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


PRICES = curve((1, 10), (2, 11), (8, 14), (64, 90))


def fixed_price(self: Scale, model: Model, sizes: Any, all_rows: bool, rounds: int) -> Callable[[int], float]:
    """The reference takes 10 ms, a file made here 8 as a target and 1 as a draft model, any other draft model 4."""
    made = "making" in str(getattr(model, "path", ""))
    return lambda n: 0.001 * ((8 if made else 10) if all_rows else (1 if made else 4))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is timed, and no build is tried in a child process."""
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Scale, "price", fixed_price)
    for place in ("opening", "advise.matrix"):
        monkeypatch.setattr(f"slipstream.{place}.curve_of", lambda *args, **kw: PRICES)
    monkeypatch.setattr("slipstream.models.llamacpp.probe.ensure", lambda *args: None)
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> str:
    lines = [("list", "One, two, three, four, five, six, one, two, three,"), ("chat", "Say hello to a cat.")]
    path = tmp_path / "work.jsonl"
    path.write_text("".join(json.dumps({"kind": kind, "prompt": prompt}) + "\n" for kind, prompt in lines) + "{}\n")
    return str(path)


def test_the_command_on_a_real_model(smollm2: Path, home: Path, work: str, tmp_path: Path, capsys: Any) -> None:
    args = ["-m", str(smollm2), "--requant", "Q4_0,Q8_0", "--draft", "suffix", "--draft", f"suffix,{smollm2}"]
    args += [
        "--requant-draft",
        "q4_0",
        "--workload",
        work,
        "--max-tokens",
        "20",
        "--json",
        "--out",
        str(tmp_path / "o"),
    ]
    assert run(*args) == 0
    out, err = capsys.readouterr()
    result = last_json(out)
    assert json.loads((tmp_path / "o").read_text()) == result
    own = f"suffix,{smollm2.name}"
    drafts = ["none", "suffix", own, f"{own} as Q4_0"]
    targets = ["Q4_1", "Q4_0 from Q4_1", "Q8_0 from Q4_1"]
    assert result["reference"] == "Q4_1" and result["skipped"] == [] and result["prompts"] == 2
    rows = {(r["target"], r["draft"]): r for r in result["rows"]}
    assert list(rows) == [(t, d) for t in targets for d in drafts]
    assert all(r["text"] is None for (t, _), r in rows.items() if t == "Q4_1")
    coarse, fine = (rows[t, "none"]["text"] for t in targets[1:])
    assert coarse["tokens"] == fine["tokens"] > 20
    assert 0 < fine["kl"] < 0.05 < coarse["kl"] and 0.9 <= fine["agreement"] <= 1 and coarse["agreement"] < 1
    assert set(rows[targets[1], own]["kinds"]) == {"list", "chat"} == set(rows[targets[1], own]["speedups"])
    plain = rows["Q4_0 from Q4_1", "none"]
    assert (
        plain["spread"] == 1
        and plain["measured"]
        and plain["over_reference"] == pytest.approx(1.25)
        and plain["tps"] == pytest.approx(125)
    )
    drafted = rows["Q4_0 from Q4_1", f"{own} as Q4_0"]
    assert drafted["over_reference"] == pytest.approx(1.25 * drafted["speedup"]) == pytest.approx(drafted["tps"] / 100)
    drafted = rows["Q4_1", f"{own} as Q4_0"]
    assert not drafted["measured"] and 0 < drafted["acceptance_rate"] <= 1
    assert drafted["speedup"] > rows["Q4_1", own]["speedup"] > 1, "a cheaper draft model of about the same guesses"
    for draft in drafts:
        assert rows["Q4_0 from Q4_1", draft]["memory"] < rows["Q8_0 from Q4_1", draft]["memory"]
    assert rows["Q4_1", own]["memory"] > 1.8 * rows["Q4_1", "none"]["memory"]
    assert len(result["notes"]) == 2 and "lost precision twice" in result["notes"][0] and result["notes"][0] in out
    assert all(r["verdict"] in out for r in result["rows"]) and "line 3 is left out" in err
    assert [m["sha256"] for m in result["provenance"]["models"].values()] and "making" not in json.dumps(
        result["provenance"]
    )
    assert list((home / "tuned").iterdir()) == [], "what was made is gone"


def test_the_same_file_twice_is_the_same_text(
    smollm2: Path, home: Path, work: str, tmp_path: Path, capsys: Any
) -> None:
    """Through llama.cpp, not only on toys."""
    copy = tmp_path / "copy.gguf"
    copy.symlink_to(smollm2)
    assert run("-m", str(smollm2), "-m", str(copy), "--workload", work, "--max-tokens", "16", "--json") == 0
    texts = [r["text"] for r in last_json(capsys.readouterr().out)["rows"] if r["target"] == "copy"]
    assert len(texts) == 2 and all((t["agreement"], t["kl"]) == (1.0, 0.0) for t in texts)


def test_files_that_do_not_fit_beside_the_reference_are_measured_after_it(
    smollm2: Path, home: Path, work: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = Matrix._loaded

    def noted(self: Matrix, header: Any) -> Any:
        loaded.append("beside" if self._scale is not None else "alone")
        return load(self, header)

    monkeypatch.setattr(Matrix, "_loaded", noted)
    monkeypatch.setattr(Rules, "beside_reference", lambda self, other: "Q8_0" in other.label)
    args = ["-m", str(smollm2), "--requant", "Q4_0,Q8_0", "--workload", work, "--max-tokens", "8", "--json"]
    assert run(*args) == 0
    rows = [r for r in last_json(capsys.readouterr().out)["rows"] if r["draft"] == "none"]
    assert loaded == ["beside", "alone"] and [r["in_turn"] for r in rows] == [True, False, True]
    assert "not timed in turn" in rows[1]["verdict"] and rows[1]["text"]["tokens"] > 0


def test_ctrl_c_keeps_what_was_complete(
    smollm2: Path, home: Path, work: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = Reference.compare
    times = iter(range(9))

    def interrupted(self: Reference, model: Model, stopped: Any) -> Any:
        if next(times) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return compare(self, model, stopped)

    monkeypatch.setattr(Reference, "compare", interrupted)
    args = ["-m", str(smollm2), "--requant", "Q4_0,Q8_0,Q5_0", "--workload", work, "--max-tokens", "8", "--json"]
    assert run(*args) == 130
    out, err = capsys.readouterr()
    result = last_json(out)
    assert result["interrupted"] and "stopped by Ctrl-C" in err
    assert [(r["target"], r["draft"]) for r in result["rows"]] == [
        (t, d) for t in ("Q4_1", "Q4_0 from Q4_1") for d in ("none", "suffix")
    ]
    assert list((home / "tuned").iterdir()) == []


def test_one_file_that_fails_costs_only_itself(
    smollm2: Path, home: Path, work: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = variants.quantize

    def some_fail(source: Path, destination: Path, recipe: Any, threads: int) -> None:
        if recipe.quantisation == "iq4_xs":
            raise ModelFileError("no such luck")
        make(source, destination, recipe, threads)

    monkeypatch.setattr(variants, "quantize", some_fail)
    load = Matrix._loaded

    def broken(self: Matrix, header: Any) -> Any:
        if header.quantization == "Q5_0":
            raise ModelFileError("it does not load")
        return load(self, header)

    monkeypatch.setattr(Matrix, "_loaded", broken)
    other = tiny(tmp_path, "other.gguf")
    args = ["-m", str(smollm2), "--requant", "iq4_xs,Q5_0,Q8_0", "--draft", "suffix", "--draft", str(other)]
    assert run(*args, "--workload", work, "--max-tokens", "6", "--json") == 0
    out, err = capsys.readouterr()
    result = last_json(out)
    assert [(r["target"], r["draft"]) for r in result["rows"]] == [
        (t, d) for t in ("Q4_1", "Q8_0 from Q4_1") for d in ("none", "suffix")
    ]
    skipped = {(s["target"], s["draft"]): s["reason"] for s in result["skipped"]}
    assert skipped["Q5_0 from Q4_1", "none"] == "it does not load" and "no such luck" in err
    assert "vocabular" in skipped["Q4_1", "other.gguf"] and "Q4_1 with other.gguf: left out" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--requant", "Q4_9"), "unknown quantisation: Q4_9"),
        (("--requant-draft", "Q4_0"), "no draft model to requantise"),
        (("--draft", "sufix"), "unknown model: sufix"),
        (("--draft", "suffix,suffix"), "named twice"),
        (("--max-tokens", "1"), "--max-tokens 2 or more"),
        (("--per-kind", "-1"), "--per-kind must be"),
        (("--workload", "no-such.jsonl"), "cannot read no-such.jsonl"),
        (("--out", "no-such-folder/x"), "cannot write"),
    ],
)
def test_refusals(args: tuple[str, ...], message: str, smollm2: Path, home: Path) -> None:
    with pytest.raises(InputError, match=message) as e:
        run("-m", str(smollm2), *args)
    assert e.value.hint
    if message.startswith("unknown model"):
        assert "suffix" in e.value.hint


def test_no_room_on_the_disk_says_what_takes_less(
    smollm2: Path, home: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DiskShortage) as e:
        run("-m", str(smollm2), "--workload", work)
    assert isinstance(e.value, SlipstreamError) and "--max-tokens" in e.value.hint


def test_rows_are_the_same_however_many_are_read_at_once() -> None:
    script = Script("x", [1, 2], list(range(10)) * 8)
    wide, narrow = (
        [rows.copy() for rows in divergence.logits(ToyModel(OURS, N, 256, n_batch=n), script)] for n in (64, 4)
    )
    assert (len(wide), len(narrow)) == (3, 20)
    np.testing.assert_array_equal(np.concatenate(wide), np.concatenate(narrow))
    np.testing.assert_array_equal(wide[0][1], OURS([1, 2, 0]))
