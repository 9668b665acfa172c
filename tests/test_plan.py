"""The plan: made from an advice, written and read whole, and what commands take from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from advice_sample import DRAFT, advice
from gguf_writer import tiny_llama, write_gguf
from slipstream.advise.advice import Speed
from slipstream.advise.plan import Plan, fixed_length, read, tomllib, write
from slipstream.cli.app import main
from slipstream.core.cost import Curve
from slipstream.errors import InputError, UnknownName
from slipstream.hub import cache

FLAT = Curve((1, 32), (1.0, 1.0))
STEEP = Curve((1, 32), (1.0, 32.0))


def speed(**figures: Any) -> Speed:
    return Speed(speedup=1.2, **figures)


def changed(tmp_path: Path, change: Any) -> Path:
    """A plan's file whose values `change` has edited."""
    path = tmp_path / "plan.toml"
    write(Plan.of(advice()), path)
    values = tomllib.loads(path.read_text())
    change(values)
    path.write_text(tomli_w.dumps(values))
    return path


# -- from an advice, to a file, and back ---------------------------------------------------------------------------


def test_a_plan_holds_what_the_advice_decided() -> None:
    plan = Plan.of(advice())
    assert plan.options() == {"model": "qwen2.5-coder-1.5b", "draft": DRAFT, "verify": "exact", "threads": 0}
    assert plan.target.file == "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" and plan.target.sha256 == "0" * 64
    assert plan.draft_model is not None and plan.draft_model.model == "qwen2.5-coder-0.5b"
    kinds = {k.kind: k for k in plan.kinds}
    assert kinds["creative"].decision == "off" and kinds["creative"].speedup == 0.88
    assert kinds["code editing"].acceptance_rate == 0.88 and kinds["code editing"].measured
    assert kinds["code editing"].interval is not None and kinds["code editing"].interval[0] < 2.96
    assert plan.overall.speedup == 1.34 and plan.decision == "on"
    assert plan.workload.source == "requests.jsonl" and plan.workload.mix["chat"] == 12
    assert plan.made.versions["slipstream"] == "0.1.0" and plan.made.machine == "A processor with 2 cores"


def test_a_plan_without_a_draft_model_names_none() -> None:
    assert Plan.of(advice(chosen="suffix")).draft_model is None
    off = Plan.of(advice(chosen="none"))
    assert off.off and off.draft_model is None and off.draft_length is None
    assert not Plan.of(advice()).off


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "my plan.toml"
    write(Plan.of(advice()), path)
    assert read(path) == Plan.of(advice())
    assert [p.name for p in tmp_path.iterdir()] == ["my plan.toml"], "nothing is left beside it"
    first = path.read_text().splitlines()[:3]
    assert first[0].startswith("# A plan by Slipstream") and "slipstream run --plan 'my plan.toml'" in first[1]


def test_a_plan_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda a, b: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(InputError, match="cannot write"):
        write(Plan.of(advice()), path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_bad_file_is_refused_with_a_hint(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            read(path)
        assert caught.value.hint
        return f"{caught.value.message} | {caught.value.hint}"

    assert "cannot read" in message(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("draft = ")
    assert "is not TOML" in message(bad)
    bad.write_bytes(b"\xff\xfe")
    assert "is not TOML" in message(bad)
    bad.write_text('draft = "suffix"')
    assert "not a plan" in message(bad)
    assert "format 2" in message(changed(tmp_path, lambda v: v.update(format=2)))
    assert "threads" in message(changed(tmp_path, lambda v: v.update(threads="two")))
    assert "target.size" in message(changed(tmp_path, lambda v: v["target"].update(size="big")))
    assert "overall" in message(changed(tmp_path, lambda v: v.pop("overall")))


@pytest.mark.parametrize(
    ("edit", "found", "near"),
    [
        (lambda v: v.update(drafts="suffix"), "drafts", "draft"),
        (lambda v: v["target"].update(sha265="0"), "target.sha265", "target.sha256"),
        (lambda v: v["kinds"][2].update(speed_up=2.0), "kinds.2.speed_up", "kinds.speedup"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, edit: Any, found: str, near: str) -> None:
    with pytest.raises(UnknownName) as caught:
        read(changed(tmp_path, edit))
    assert near in caught.value.hint
    assert re.sub(r"\.\d+", "", found) in caught.value.message


# -- the best fixed draft length ------------------------------------------------------------------------------------


def test_the_length_follows_acceptance_and_prices() -> None:
    shares = [0.9, 0.7, 0.5, 0.3]
    assert fixed_length(speed(by_position=shares), FLAT, None) == 4, "free tokens: as deep as was measured"
    assert fixed_length(speed(by_position=shares), STEEP, None) == 0, "a token in a batch costs as much as one alone"
    stairs = Curve((1, 2, 3, 4, 5), (1.0, 1.05, 1.1, 2.0, 2.1))
    assert fixed_length(speed(by_position=shares), stairs, None) == 2, "the next stair costs more than 0.5 tokens"
    assert fixed_length(speed(by_position=shares), FLAT, Curve((1, 2), (0.4, 0.4))) == 2, "guesses cost too"
    assert fixed_length(speed(acceptance_rate=0.5), FLAT, None) == 1
    assert fixed_length(speed(), FLAT, None) is None


def test_deep_guesses_that_were_only_made_when_likely_do_not_lengthen_it() -> None:
    stairs = Curve((1, 2, 3, 4), (1.0, 1.1, 1.5, 1.9))
    assert fixed_length(speed(by_position=[0.4, 0.9, 0.9]), stairs, None) == 1
    assert fixed_length(speed(by_position=[0.9, 0.9, 0.9]), stairs, None) == 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 2))
def test_no_other_length_would_be_faster(shares: list[float], token: float) -> None:
    target = Curve((1, 2, 4, 8, 16), (1.0, 1.2, 1.3, 2.5, 3.0))
    draft = Curve((1, 2), (token, token)) if token else None

    def rate(n: int) -> float:
        kept = [min(shares[: i + 1]) for i in range(n)]
        return (1 + sum(kept)) / (target.at(1 + n, 256) + n * token)

    best = fixed_length(speed(by_position=shares), target, draft)
    assert best is not None and rate(best) == pytest.approx(max(map(rate, range(len(shares) + 1))))


def test_the_plan_s_length_is_for_what_was_chosen() -> None:
    assert (Plan.of(advice()).draft_length or 0) >= 2
    assert Plan.of(advice(chosen="suffix")).draft_length is None, "the overall figures are another way's"


# -- what commands take from it -------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options that a command would have opened an engine with; none is opened."""
    seen: list[Any] = []

    class Stop(InputError): ...

    def note(options: Any, **more: Any) -> None:
        seen.append(options)
        raise Stop("seen", "")

    for command in ("run", "chat", "bench"):
        monkeypatch.setattr(f"slipstream.cli.{command}.open_engine", note)
    return seen


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A plan for a model file that is there, as it was measured; two threads, drafting from the text alone."""
    file = tmp_path / "tiny.gguf"
    write_gguf(file, *tiny_llama())
    facts = {"name": str(file), "file": file.name, "size": file.stat().st_size, "sha256": cache.sha256_of(file)}
    whole = advice()
    target = whole.target.model_copy(update=facts)
    settings = whole.settings.model_copy(update={"threads": 2})
    path = tmp_path / "plan.toml"
    write(Plan.of(advice(target=target, settings=settings, chosen="suffix")), path)
    return path


COMMANDS = (["run", "hello"], ["chat"], ["bench", "--workload", "builtin"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: str(c[0]))
def test_a_plan_gives_the_defaults_and_the_command_line_wins(command: list[str], planned: Path, opened: Any) -> None:
    model = str(planned.parent / "tiny.gguf")
    more = ["--draft", "suffix,recycle", "--threads", "0", "--verify", "block"]
    main([*command, "--plan", str(planned)])
    main([*command, "--plan", str(planned), *more])
    taken = [(o.model, o.draft, o.verify, o.threads) for o in opened]
    assert taken == [(model, "suffix", "exact", 2), (model, "suffix,recycle", "block", 0)]


def test_a_default_wins_too_when_it_is_written_out(planned: Path, opened: Any) -> None:
    planned.write_text(tomli_w.dumps(tomllib.loads(planned.read_text()) | {"draft": "recycle"}))
    main(["run", "--plan", str(planned), "hello"])
    main(["run", "--plan", str(planned), "--draft", "suffix", "hello"])
    assert [o.draft for o in opened] == ["recycle", "suffix"]


def test_without_a_model_and_a_plan_the_way_out_is_said(opened: Any, capsys: Any) -> None:
    assert main(["run", "hello"]) == 2
    err = capsys.readouterr().err
    assert "error: no model is named" in err and "hint: give -m MODEL, or --plan FILE" in err and not opened


def test_a_plan_that_is_missing_is_an_error(tmp_path: Path, opened: Any, capsys: Any) -> None:
    assert main(["run", "--plan", str(tmp_path / "none.toml"), "hello"]) == 2
    assert "error: cannot read" in capsys.readouterr().err and not opened


def test_help_names_the_plan(capsys: Any) -> None:
    main(["run", "--help"])
    out = capsys.readouterr().out
    assert "--plan" in out and "--model" in out and "context" not in re.findall(r"--(\w+)", out)


def test_a_matching_file_raises_no_warning_and_another_does(planned: Path, opened: Any, capsys: Any) -> None:
    file = planned.parent / "tiny.gguf"
    main(["run", "--plan", str(planned), "hello"])
    assert "warning" not in capsys.readouterr().err
    other = file.with_name("other.gguf")
    other.write_bytes(file.read_bytes())
    main(["run", "--plan", str(planned), "-m", str(other), "hello"])
    assert "made for tiny.gguf, not other.gguf" in capsys.readouterr().err
    file.write_bytes(file.read_bytes() + b"\0")
    main(["run", "--plan", str(planned), "hello"])
    assert re.search(r"warning: plan.toml: tiny.gguf had [\d,]+ bytes when it was made", capsys.readouterr().err)


def test_a_known_checksum_is_compared(planned: Path, opened: Any, capsys: Any) -> None:
    file = planned.parent / "tiny.gguf"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    cache.record_verified(file, cache.sha256_of(file))
    main(["run", "--plan", str(planned), "hello"])
    assert "tiny.gguf has other contents" in capsys.readouterr().err


def test_off_means_plain_decoding_and_says_so(planned: Path, opened: Any, capsys: Any) -> None:
    values = tomllib.loads(planned.read_text()) | {"draft": "none", "decision": "off"}
    planned.write_text(tomli_w.dumps(values))
    main(["run", "--plan", str(planned), "hello"])
    lines = [line for line in capsys.readouterr().err.splitlines() if "plan.toml" in line]
    assert len(lines) == 1 and "drafting does not pay here" in lines[0] and opened[0].draft == "none"
    main(["run", "--plan", str(planned), "--draft", "suffix", "hello"])
    assert "does not pay" not in capsys.readouterr().err and opened[1].draft == "suffix"


def test_a_plan_really_runs(smollm2: Path, tmp_path: Path, capsys: Any) -> None:
    facts = {"name": str(smollm2), "file": smollm2.name, "size": smollm2.stat().st_size}
    path = tmp_path / "plan.toml"
    write(Plan.of(advice(target=advice().target.model_copy(update=facts), chosen="none")), path)
    assert main(["run", "--plan", str(path), "--raw", "--max-tokens", "4", "one two three"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() and "drafting does not pay here" in err
