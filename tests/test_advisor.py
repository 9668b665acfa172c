"""The advice as a whole: verdicts from evidence, the same from the same, and all of it for real on a small model."""

from __future__ import annotations

import errno
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from slipstream.advise import evidence as keeping
from slipstream.advise import plan
from slipstream.advise.advice import Advice
from slipstream.advise.advisor import Advisor, Item, Settings
from slipstream.advise.candidates import Candidate, candidates
from slipstream.advise.conclude import Prices, conclude
from slipstream.advise.evidence import TARGET, Evidence, Run
from slipstream.advise.measure import Work
from slipstream.advise.progress import Progress
from slipstream.advise.rehearse import Outcome, Script
from slipstream.advise.workload import Loaded
from slipstream.cli.app import main
from slipstream.core.stats import Stats
from slipstream.errors import InputError
from slipstream.files import write_whole
from slipstream.generation import Request
from test_cli import MODEL, assert_refused, last_json, slipstream
from virtual import CURVES

TOKENS, STEPS = 60, 40
WAYS = [Candidate.of("suffix"), Candidate.of(f"suffix,{MODEL}")]


def run(speedup: float, drafting: bool) -> Run:
    if not drafting:
        return Run(TOKENS * 0.04 / speedup, TOKENS, 0.5)
    counts = STEPS, 50, TOKENS - STEPS, [30, 20], [14, 6]
    return Run(TOKENS * 0.04 / speedup, TOKENS, 0.5, *counts, "identical", [("fast ", "suffix"), ("text", "target")])


def advisor(speedups: dict[str, tuple[float, float]], n: int = 6, seed: int = 0, noise: float = 0.02) -> Advisor:
    """Evidence of n prompts a kind, whose speed-ups with suffix and with the model are about as given."""
    rng = random.Random(1)  # the same data, whatever the seed of the advice
    works = [Work(kind, f"{kind} {i}", why="as given") for kind in speedups for i in range(n)]
    found = Advisor(
        MODEL, Loaded(works, []), WAYS, Settings(seed=seed, runs=1), Evidence(), Progress(lambda _: None)
    )  # fmt: skip
    found.evidence.curves[TARGET] = CURVES["flat"]
    found.evidence.curves[MODEL] = CURVES["small"]
    found.evidence.memory = {TARGET: 10**9, MODEL: 10**8}
    found.tried = [way.draft for way in WAYS]
    for i, work in enumerate(works):
        found.items.append(Item(work.kind, str(i), Request("x"), Script(work.kind, [1], [2, 3])))
        each = [run(s * rng.lognormvariate(0, noise), True) for s in speedups[work.kind]]
        found.evidence.rounds[str(i)] = [
            {"none": run(1, False)} | {w.draft: r for w, r in zip(WAYS, each, strict=True)}
        ]
    return found


def outcomes(found: Advisor) -> dict[str, list[Outcome]]:
    """Predictions that are a tenth too good."""

    def one(item: Item, draft: str) -> Outcome:
        own = found.evidence.rounds[item.key][0]
        drafted = own.get(draft, own["suffix"])
        stats = Stats(steps=STEPS, emitted=TOKENS, verified=50, accepted=20)
        return Outcome(item.kind, TOKENS * 0.04, drafted.seconds / 1.1, stats)

    return {way.draft: [one(item, way.draft) for item in found.items] for way in WAYS}


def concluded(found: Advisor, **more: Any) -> Advice:
    prices = Prices(found.evidence.curves[TARGET], found.evidence.curves)
    return conclude(found, outcomes(found), prices, "mine.jsonl", "slipstream advise", **more)


def without_date(advice: Advice) -> dict[str, Any]:
    value = advice.model_dump()
    value["provenance"]["date"] = value["provenance"]["machine"]["load"] = None
    return value


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_free_chat_alone_takes_no_draft_model_that_measures_slower(smollm2: Path) -> None:
    advice = concluded(advisor({"chat": (1.0, 0.85)}))
    assert (advice.chosen, advice.overall.decision) == ("suffix", "not worth it")
    advice = concluded(advisor({"chat": (0.93, 0.85)}))
    assert (advice.chosen, advice.overall.decision) == ("none", "off")
    assert advice.verdicts[0].reason and "slower" in advice.verdicts[0].reason


def test_code_edits_are_on(smollm2: Path) -> None:
    advice = concluded(advisor({"code editing": (1.6, 2.4)}))
    assert (advice.chosen, advice.overall.decision) == (f"suffix,{MODEL}", "on")
    interval = advice.overall.speed.interval
    assert interval is not None and 2.2 < interval[0] <= advice.overall.speed.speedup <= interval[1] < 2.6


def test_each_kind_has_its_own_verdict_and_the_mix_decides(smollm2: Path) -> None:
    found = advisor({"code editing": (1.6, 2.4), "chat": (1.0, 0.85)})
    advice = concluded(found)
    assert {v.kind: v.decision for v in advice.verdicts} == {"code editing": "on", "chat": "not worth it"}
    chats = [Work("chat", f"more {i}", why="as given") for i in range(200)]
    found.loaded = replace(found.loaded, cut_from=[*found.loaded.works, *chats])
    mostly_chat = concluded(found)
    assert mostly_chat.workload.mix == {"code editing": 6, "chat": 206}
    assert mostly_chat.overall.speed.speedup < 1.1 < advice.overall.speed.speedup
    assert mostly_chat.chosen == "suffix"


def test_few_prompts_say_so(smollm2: Path) -> None:
    advice = concluded(advisor({"chat": (1.5, 2.0)}, n=2))
    assert advice.overall.decision == "too few prompts" and advice.chosen == "suffix"
    noisy = concluded(advisor({"chat": (1.2, 1.3)}, n=4, noise=0.5))
    assert noisy.overall.decision == "too few prompts"


def test_break_even_and_acceptance_tell_the_same_as_the_speed(smollm2: Path) -> None:
    """Break-even is the acceptance rate at which these drafts would have taken plain decoding's time."""
    advice = concluded(advisor({"a": (1.3, 0.8), "b": (1.02, 1.9)}))
    for cell in advice.cells:
        assert cell.measured is not None
        rate, needed = cell.measured.acceptance_rate, cell.measured.break_even
        assert rate is not None and needed is not None
        assert (rate > needed) == (cell.measured.speedup > 1)
        assert cell.measured.by_position == pytest.approx([14 / 30, 6 / 20])


def test_predictions_are_held_against_measurements(smollm2: Path) -> None:
    advice = concluded(advisor({"a": (1.3, 0.8), "b": (1.0, 1.9)}))
    assert advice.accuracy is not None and advice.accuracy.cells == 4
    assert advice.accuracy.median_error == pytest.approx(0.1, abs=1e-6)


def test_the_same_data_give_the_same_advice_and_no_seed_moves_a_verdict(smollm2: Path) -> None:
    kinds = {"code editing": (1.6, 2.4), "chat": (1.0, 0.85), "creative": (0.9, 1.1)}
    first = without_date(concluded(advisor(kinds)))
    assert without_date(concluded(advisor(kinds))) == first
    for seed in range(1, 4):
        other = without_date(concluded(advisor(kinds, seed=seed)))
        assert other["verdicts"] == first["verdicts"] and other["chosen"] == first["chosen"]


def test_what_was_stopped_early_is_not_held_against_the_rest(smollm2: Path) -> None:
    """The model was run on the edits alone, where it shines; on chat it would have lost."""
    found = advisor({"code editing": (1.6, 2.4), "chat": (1.0, 0.85)})
    for item in found.items:
        if item.kind == "chat":
            del found.evidence.rounds[item.key][0][WAYS[1].draft]
    advice = concluded(found)
    assert advice.chosen == "suffix" and advice.overall.prompts == 12
    cell = advice.cell(WAYS[1].draft, "code editing")
    assert cell is not None and cell.measured is not None and cell.prompts == 6
    found = advisor({"code editing": (1.6, 2.4), "chat": (1.0, 0.85)})
    del found.evidence.rounds["0"][0][WAYS[1].draft]  # one prompt less: both are judged on what both have
    assert concluded(found).overall.prompts == 11


def test_all_figures_are_of_the_same_mix(smollm2: Path) -> None:
    found = advisor({"code editing": (1.6, 2.4), "chat": (0.9, 0.85)})
    chats = [Work("chat", f"more {i}", why="as given") for i in range(594)]
    found.loaded = replace(found.loaded, cut_from=[*found.loaded.works, *chats])
    speed = concluded(found).overall.speed
    assert speed.tps is not None and speed.plain_tps is not None
    assert speed.tps / speed.plain_tps == pytest.approx(speed.speedup, rel=1e-6)
    assert speed.acceptance_rate is not None and speed.break_even is not None
    assert (speed.acceptance_rate > speed.break_even) == (speed.speedup > 1)


def test_a_way_whose_text_differs_is_never_chosen(smollm2: Path) -> None:
    found = advisor({"chat": (1.3, 1.6)})
    rounds = found.evidence.rounds["0"][0]
    rounds[WAYS[1].draft] = replace(rounds[WAYS[1].draft], texts="mismatch")
    assert concluded(found).chosen == "none"


def test_texts_of_the_user_stay_out_of_a_redacted_advice(smollm2: Path) -> None:
    found = advisor({"chat": (1.5, 1.2)})
    found.evidence.rounds["0"][0]["suffix"] = replace(
        run(1.5, True), accepted=TOKENS, segments=[("the key is sk-Ab12Cd34", "suffix"), ("Ef56Gh78Ij", "target")]
    )
    sample = concluded(found).sample
    assert sample is not None and sample.draft == "suffix"
    assert "".join(s.text for s in sample.segments) == "the key is █████"
    assert concluded(found, redact=True).sample is None


def test_stopped_before_the_runs_it_says_that_it_only_predicts(smollm2: Path) -> None:
    found = advisor({"chat": (1.0, 1.4)})
    found.evidence.rounds.clear()
    predicted = {way.draft: [Outcome("chat", 2.4, 2.4 / s, Stats(steps=40, emitted=60, verified=50, accepted=20))] * 6
                 for way, s in zip(WAYS, (1.0, 1.4), strict=True)}  # fmt: skip
    found.stopped = lambda: True
    prices = Prices(CURVES["flat"], found.evidence.curves)
    advice = conclude(found, predicted, prices, "mine.jsonl", "slipstream advise")
    assert advice.interrupted and not advice.overall.measured and advice.accuracy is None
    assert all(cell.measured is None for cell in advice.cells) and "predicted" in advice.overall.reason
    with pytest.raises(ValueError, match="nothing"):
        conclude(found, {}, prices, "x", "x")


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_damaged_evidence_is_as_good_as_none(tmp_path: Path) -> None:
    found = advisor({"a": (1.3, 0.8)}).evidence
    found.path = tmp_path / "e.json"
    found.write()
    value = json.loads(found.path.read_text())
    value["curves"][TARGET]["sizes"] = [5]
    found.path.write_text(json.dumps(value))
    assert Evidence.read(found.path).rounds == {}


def test_another_file_or_corpus_under_the_same_name_is_run_anew() -> None:
    found = advisor({"a": (1.3, 0.8)}).evidence
    found.recognise(MODEL, "one")
    assert WAYS[1].draft in found.rounds["0"][0]
    found.recognise(MODEL, "two")
    assert WAYS[1].draft not in found.rounds["0"][0] and "suffix" in found.rounds["0"][0]
    assert MODEL not in found.curves


def test_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = advisor({"a": (1.3, 0.8)}).evidence
    found.answers["k"], found.path, found.overhead_s = [1, 2], tmp_path / "sub" / "e.json", 0.001
    found.write()
    again = Evidence.read(found.path)
    assert (again.answers, again.rounds["0"][0]["suffix"].seconds) == (
        found.answers,
        found.rounds["0"][0]["suffix"].seconds,
    )
    assert (again.curves, again.memory, again.overhead_s) == (found.curves, found.memory, 0.001)
    assert found.path.stat().st_mode & 0o077 == 0, "its owner's alone"
    found.path.write_text('{"format": 1, "answers": 5}')
    assert Evidence.read(found.path).answers == {}
    assert Evidence.read(tmp_path / "none.json").answers == {}


def test_a_full_disk_costs_no_work_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = Evidence(tmp_path / "e.json", answers={"a": [1]})
    found.write()
    before = found.path.read_bytes()  # type: ignore[union-attr]
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        real(self, data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    found.answers["b"] = [2]
    found.write()
    found.write()
    assert [p.name for p in tmp_path.iterdir()] == ["e.json"]
    assert found.path.read_bytes() == before  # type: ignore[union-attr]
    assert caplog.text.count("cannot be kept") == 1
    with pytest.raises(InputError, match="cannot write"):
        write_whole(tmp_path / "report.html", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["e.json"]


def test_progress_says_how_long_it_will_take() -> None:
    now, said = [0.0], []
    progress = Progress(said.append, clock=lambda: now[0])
    progress.expect("answers", 10, 60)
    progress.expect("runs", 10, 120)
    assert progress.left_s == 1800
    for _ in range(5):
        progress.begin()
        now[0] += 12  # faster than was thought
        progress.done("answers", "chat")
        now[0] += 100  # of no stage
    assert progress.left_s == 5 * 12 + 1200
    assert said[-1] == "chat (answers 5/10, about 21 min left)"


# -- for real ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models as they are, but evidence of its own."""
    monkeypatch.setattr(keeping, "cache_dir", lambda: tmp_path / "home")
    return tmp_path


def workload(folder: Path, *lines: Any) -> Path:
    file = folder / "mine.jsonl"
    given = lines or [
        {"kind": kind, "prompt": f"{ask} {i}, {i + 1}, {i + 2}, {i + 3},"}
        for i in range(3)
        for kind, ask in (("counting", "Go on counting:"), ("chat", "Say something about the number"))
    ]
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in given))
    return file


def advise(capsys: Any, *args: str) -> tuple[int, dict[str, Any], str]:
    code = main(["advise", "-m", MODEL, "--max-tokens", "12", "--runs", "1", *args, "--json"])
    out, err = capsys.readouterr()
    return code, last_json(out), err


def test_it_advises_resumes_and_is_asked_again(home: Path, capsys: Any) -> None:
    file, out = workload(home), home / "advice.json"
    code, first, err = advise(capsys, "--workload", str(file), "--out", str(out), "--html", str(home / "r.html"),
                              "--plan", str(home / "plan.toml"), "--markdown", str(home / "r.md"))  # fmt: skip
    assert code in (0, 1), err
    assert Advice.model_validate_json(out.read_bytes()) == Advice.model_validate(first)
    assert first["workload"]["mix"] == first["workload"]["used"] == {"counting": 3, "chat": 3}
    assert {c["draft"] for c in first["cells"]} == {"suffix", "suffix,recycle"}
    assert all(c["measured"] and c["texts"] in ("identical", "near tie") for c in first["cells"])
    assert first["target"]["memory"]["measured"] > 0 and first["target_prices"]["seconds"][0] > 0
    assert "left)" in err and plan.read(home / "plan.toml").draft == first["chosen"]
    assert "<html" in (home / "r.html").read_text() and "counting" in (home / "r.md").read_text()

    code, again, err = advise(capsys, "--workload", str(file), "--resume")
    assert "runs" not in err, "nothing is run again"
    assert [again[k] for k in ("cells", "verdicts", "overall", "chosen")] == [
        first[k] for k in ("cells", "verdicts", "overall", "chosen")
    ]
    # Where a forward of n tokens costs n times as much, nothing gains; where it costs nothing more, what is right does.
    _, dear, err = advise(capsys, "--workload", str(file), "--what-if", "T(n)=10*n")
    assert "runs" not in err and not dear["overall"]["measured"] and dear["settings"]["what_if"]
    assert dear["overall"]["speed"]["speedup"] < 1.01 and dear["overall"]["decision"] != "on"
    _, cheap, _ = advise(capsys, "--workload", str(file), "--what-if", "T(n)=1000")
    assert cheap["overall"]["speed"]["speedup"] > max(dear["overall"]["speed"]["speedup"], 1.05)


def test_what_cannot_be_used_is_left_out_with_the_reason(home: Path, capsys: Any) -> None:
    recurrent = tiny_models.mamba(home / "mamba.gguf")
    file = workload(
        home, {"kind": "chat", "prompt": "Say hello."}, {"kind": "chat", "prompt": "word " * 9000}, "{not json}\n",
        {"kind": "chat", "prompt": "Say good night."},
    )  # fmt: skip
    code, found, err = advise(capsys, "--workload", str(file), "--candidates", f"suffix;{recurrent}")
    assert code in (0, 1), err
    skipped = {c["draft"]: c["skipped"] for c in found["candidates"]}
    assert "recurrent" in skipped["mamba.gguf"] and skipped["suffix"] == ""
    assert "left out" in err and {c["draft"] for c in found["cells"]} == {"suffix"}
    reasons = " ".join(f"{where}: {why}" for where, why in found["workload"]["left_out"])
    assert "line 3: not JSON" in reasons and "the context holds" in reasons
    assert found["workload"]["used"] == {"chat": 2}


def test_one_prompt_that_cannot_be_used_costs_only_itself(home: Path, capsys: Any) -> None:
    file = workload(
        home, {"kind": "gap", "middle": ["", "the end"]}, {"kind": "chat", "prompt": "Say hello."},
        {"kind": "chat", "prompt": "Say good night."},
    )  # fmt: skip
    code, found, err = advise(capsys, "--workload", str(file), "--candidates", "suffix")
    assert code in (0, 1) and found["workload"]["used"] == {"chat": 2}, err
    assert ["a prompt (gap)", "it is empty"] in found["workload"]["left_out"]


def test_where_nothing_can_be_used_it_says_why(home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = tiny_models.mamba(home / "mamba.gguf")
    ask = ["advise", "-m", MODEL, "--workload", str(workload(home))]
    assert_refused([*ask, "--candidates", str(recurrent)], "no way to draft is left", capsys, monkeypatch)
    long = workload(home, {"prompt": "word " * 9000})
    assert_refused(["advise", "-m", MODEL, "--workload", str(long)], "the context holds", capsys, monkeypatch)


def test_no_folder_of_this_machine_is_passed_on(home: Path, smollm2: Path, capsys: Any) -> None:
    folder = home / "someone" / "private"
    folder.mkdir(parents=True)
    (folder / "draft.gguf").symlink_to(smollm2)
    file = workload(folder)
    outputs = ["--out", str(home / "a.json"), "--html", str(home / "r.html"), "--plan", str(home / "p.toml")]
    ways = f"suffix;suffix,{folder / 'draft.gguf'} k=2"
    _, found, err = advise(capsys, "--workload", str(file), "--candidates", ways, "--redact", *outputs)
    for text in (json.dumps(found), (home / "a.json").read_text(), (home / "r.html").read_text()):
        assert "someone" not in text and "draft.gguf k=2" in text, err
    if found["chosen"] != "suffix":  # a plan has to find its files again
        assert str(folder) in (home / "p.toml").read_text()


def test_a_draft_model_without_memory_is_left_out(home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.models import memory

    target = sum(row.parts.total for row in _plan().rows)
    monkeypatch.setattr(memory, "available_memory", lambda: target + 10_000_000)
    _, found, _err = advise(capsys, "--workload", str(workload(home)), "--candidates", f"suffix;{MODEL}")
    skipped = {c["draft"]: c["skipped"] for c in found["candidates"]}
    assert "memory" in skipped[MODEL].lower() and skipped["suffix"] == ""


def _plan() -> Any:
    from slipstream.opening import Files, OpenOptions, memory_plan

    return memory_plan(Files.find(MODEL, "none"), OpenOptions())[0]


def test_models_that_do_not_fit_together_are_run_one_after_the_other(
    home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Advisor, "_groups", lambda self, ways: [[way] for way in ways])
    _, found, err = advise(capsys, "--workload", str(workload(home)))
    assert all(c["measured"] and c["prompts"] == 3 for c in found["cells"]), err
    assert err.count("(runs") == 2 * 2 * 6, "each with plain decoding of its own"


def test_where_answers_take_too_long_fewer_prompts_are_asked(home: Path, capsys: Any) -> None:
    _, found, err = advise(capsys, "--workload", str(workload(home)), "--minutes", "0.0001")
    assert sum(found["workload"]["used"].values()) == 1 and not found["overall"]["measured"], err
    assert found["workload"]["left_out"] == [["the rest of the prompts", "answering them would take too long"]]


def test_a_draft_model_is_heard_and_run(home: Path, capsys: Any) -> None:
    """The target as its own draft model, with the same noise: its guesses are right but for what rounding in a batch
    changes at a temperature, and the rehearsal says so too. Without that noise about half of them would be."""
    _, found, err = advise(
        capsys, "--workload", str(workload(home)), "--candidates", f"{MODEL} k=2", "--temperature", "0.7"
    )
    cells = [c for c in found["cells"] if c["measured"]["acceptance_rate"] is not None]
    assert len(cells) == 2
    assert found["drafts"][MODEL]["memory"]["measured"] is not None, err
    for cell in cells:
        assert cell["measured"]["acceptance_rate"] >= 0.8 and cell["texts"] in ("identical", "near tie")
        assert cell["predicted"]["acceptance_rate"] >= 0.8


def test_another_workload_leaves_what_is_known_of_the_first(home: Path, capsys: Any) -> None:
    first, other = home / "a", home / "b"
    first.mkdir()
    other.mkdir()
    mine = ["--workload", str(workload(first)), "--candidates", "suffix"]
    theirs = ["--workload", str(workload(other, {"kind": "chat", "prompt": "Say hello."})), "--candidates", "suffix"]
    advise(capsys, *mine)
    advise(capsys, *theirs)
    _, _, err = advise(capsys, *mine, "--resume")
    assert "(runs" not in err
    _, _, err = advise(capsys, *mine)
    assert err.count("(runs") == 2 * 6, "without --resume all is run anew"


def test_settings_corpora_and_sampling_verifiers_are_candidates_too(home: Path, capsys: Any) -> None:
    texts = home / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("Go on counting: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12. " * 20)
    ways = f"suffix k=3;suffix,corpus;{MODEL} k=2 verify=rejection"
    _, found, err = advise(
        capsys, "--workload", str(workload(home)), "--candidates", ways, "--corpus", str(texts), "--temperature", "0.8"
    )  # fmt: skip
    assert {c["draft"] for c in found["cells"]} == set(ways.split(";")), err
    cells = {(c["draft"], c["kind"]): c for c in found["cells"]}
    assert all(len(c["measured"]["by_position"]) <= 3 for (d, _), c in cells.items() if d == "suffix k=3")
    drawn = [c for (d, _), c in cells.items() if "rejection" in d]
    for cell in drawn:  # the target as its own draft model: p is q, so every drawn guess is accepted
        assert cell["measured"]["acceptance_rate"] == 1.0 and cell["texts"] == "not compared"
        # Drawn for some twenty guesses, with a chance of about 0.9 each; independent ones would meet half as often.
        assert cell["predicted"]["acceptance_rate"] > 0.7 and len(cell["predicted"]["by_position"]) == 2
    assert {c["draft"]: c["value"] for c in found["candidates"]}["suffix,corpus"] == "suffix"


@pytest.mark.parametrize(
    ("text", "value", "k", "width", "verify", "corpus"),
    [
        ("suffix", "suffix", None, 1, "exact", False),
        (" suffix , recycle  k=4 width=2", "suffix,recycle", 4, 2, "exact", False),
        ("corpus", "none", None, 1, "exact", True),
        ("my model.gguf verify=block k=3", "my model.gguf", 3, 1, "block", False),
    ],
)
def test_candidates_say_what_they_are(
    text: str, value: str, k: int | None, width: int, verify: str, corpus: bool
) -> None:
    way = Candidate.of(text)
    assert (way.value, way.k, way.width, way.verify, way.corpus) == (value, k, width, verify, corpus)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("suffix k=0", "k is 0"),
        ("suffix k=x", "not a number"),
        ("suffix kk=2", "unknown setting"),
        ("suffix verify=blok", "unknown verifier"),
        ("suffix width=2 verify=block", "chains"),
        ("a,b", "two draft models"),
    ],
)
def test_candidates_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Candidate.of(text)
    with pytest.raises(InputError, match="no texts"):
        candidates(MODEL, "suffix,corpus")


def test_ctrl_c_keeps_what_is_done(home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of the runs; what was complete is in the advice, and resuming does only the rest."""
    import signal

    from slipstream.advise.lineup import Lineup

    real, left = Lineup.run, [8]  # one to warm up, six that are complete

    def counted(self: Lineup, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *args)

    monkeypatch.setattr(Lineup, "run", counted)
    file = workload(home)
    code, found, err = advise(capsys, "--workload", str(file))
    assert code == 130 and found["interrupted"] and "--resume" in err
    assert sum(found["workload"]["used"].values()) == 2, "two of six prompts were run in all three ways"
    code, found, err = advise(capsys, "--workload", str(file), "--resume")
    assert code in (0, 1) and not found["interrupted"] and found["workload"]["used"] == {"counting": 3, "chat": 3}
    assert err.count("(runs") == 3 * 4 and "(answers" in err


def test_stopped_before_anything_is_known(home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Advisor, "write", lambda self: setattr(self, "stopped", lambda: True))
    code, found, err = advise(capsys, "--workload", str(workload(home)))
    assert code == 130 and found == {"interrupted": True} and "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--workload", "EMPTY"], "no usable prompt"),
        (["--workload", "/no/such/file"], "cannot read"),
        (["--candidates", "none"], "nothing to compare"),
        (["--candidates", "sufix"], "unknown model"),
        (["--per-kind", "0"], "must be 1 or more"),
        (["--what-if", "T(n)=import os"], "what-if"),
        (["--lang", "xx"], "unknown language"),
        (["--temperature", "-1"], "temperature"),
        (["--out", "/no/such/folder/x.json"], "cannot write"),
        (["--out", "TWICE", "--html", "TWICE"], "named twice"),
        (["--png", "EMPTY"], "is a file"),
    ],
)
def test_bad_input(args: list[str], words: str, home: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = home / "empty.jsonl"
    empty.write_text("\n")
    args = [{"EMPTY": str(empty), "TWICE": str(home / "x")}.get(a, a) for a in args]
    assert_refused(["advise", "-m", MODEL, *args], words, capsys, monkeypatch)


def test_help_names_what_it_takes() -> None:
    shown = slipstream("advise", "--help", COLUMNS="120").stdout
    for option in ("--workload", "--candidates", "--quick", "--resume", "--what-if", "--redact", "--lang", "--plan"):
        assert option in shown
