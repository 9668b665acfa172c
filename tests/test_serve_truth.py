"""T15 of shared/needs-and-cases.md over HTTP: the configuration tells the truth."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import Asker, Json, report
from gguf_writer import tiny_llama, write_gguf
from helpers import PROMPT, Hits, Wrong, markov_table, toy_engine
from live import live
from slipstream.core.policy import Fixed, Off
from slipstream.core.types import SamplingParams
from slipstream.drafters.predicted import PredictedDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.models.toy import ToyModel, ToyTokenizer
from test_serve_cases import with_template

N = 8
TABLE = markov_table(N)


def both() -> Engine:
    """Two drafters. One is sure of itself, and is silent every fourth time: then the other one is heard."""
    drafters = [SuffixDrafter(1), Hits(TABLE, N, [2, 0, 1, None])]
    return with_template(toy_engine(TABLE, N, drafters, 4, n_slots=2))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Iterator[Asker]:
    with live(both) as url:
        yield Asker(url)


def said(server: Asker, **fields: Any) -> Json:
    """The `speculative` object, which is the same in a stream."""
    answer = server.complete(PROMPT, max_tokens=40, **fields)
    streamed = report(list(server.stream(PROMPT, max_tokens=40, **fields)))
    for name in ("mode", "active", "verify", "lossy", "reason", "notes"):
        assert answer["speculative"][name] == streamed[name]
    return dict(answer["speculative"])


# -- (a) a drafter that is not used ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Fixed(0), Off()], ids=["k is 0", "off"])
def test_t15a_a_drafter_that_is_not_used_is_said_to_be_inactive(policy: Fixed) -> None:
    with live(lambda: toy_engine(TABLE, N, "wrong", policy=policy)) as url:
        server = Asker(url)
        status = server.get("/props")["speculative"]
        assert status["active"] is False and "k is 0" in status["reason"] and status["drafter"] == "wrong"
        answer = said(server)
        assert answer["active"] is False and "k is 0" in answer["reason"] and answer["drafted"] == 0


def test_t15a_without_a_drafter_that_is_the_reason() -> None:
    with live(lambda: toy_engine(TABLE, N)) as url:
        assert "no drafter" in Asker(url).get("/props")["speculative"]["reason"]
        answer = said(Asker(url))
        assert answer["active"] is False and "no drafter" in answer["reason"]


def test_t15a_a_draft_model_with_the_mode_off_is_warned_about(smollm2: Path, caplog: pytest.LogCaptureFixture) -> None:
    way: Json
    for way, words in (({"k": 0}, "k is 0"), ({"policy": "off"}, "the policy is off")):
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "slipstream"),
            live(lambda way=way: Engine.open("smollm2-135m", "smollm2-135m", n_ctx=128, **way)) as url,  # type: ignore[misc]
        ):
            status = Asker(url).get("/props")["speculative"]
            assert status["active"] is False and status["reason"] and status["drafter"] == "model"
            assert "nothing will be drafted" in caplog.text and words in caplog.text
            answer = said(Asker(url))
            assert answer["active"] is False and answer["reason"] and answer["verified"] == 0


def test_t15a_what_is_active_is_said_to_be(server: Asker) -> None:
    status = server.get("/props")["speculative"]
    assert status["active"] is True and status["reason"] == "" and status["drafter"] == "suffix+hits"
    answer = said(server)
    assert answer["active"] is True and answer["reason"] == "" and answer["accepted"] > 0
    assert answer["mode"] == "auto" and answer["verify"] == "exact" and answer["lossy"] is False


# -- (b) an unknown option -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field", "nearest"),
    [
        ("/v1/completions", {"max_token": 5}, "max_tokens"),
        ("/v1/completions", {"temprature": 0.1}, "temperature"),
        ("/v1/chat/completions", {"top_logprob": 3}, "top_logprobs"),
        ("/v1/chat/completions", {"speculativ": False}, "speculative"),
        ("/v1/completions", {"speculative": {"draftrs": ["suffix"]}}, "drafters"),
        ("/v1/completions", {"speculative": {"max_node": 3}}, "max_nodes"),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usge": True}}, "include_usage"),
    ],
)
def test_t15b_an_unknown_field_is_a_400_that_names_the_nearest(
    server: Asker, path: str, field: Json, nearest: str
) -> None:
    body = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "ab"}]}
    error = server.post(path, {"model": "default", **body, **field}, 400)["error"]
    unknown = next(iter(next(iter(v)) if isinstance(v, dict) else k for k, v in reversed(field.items())))
    assert unknown in error["message"] and f"{nearest}" in error["message"].replace(unknown, "", 1)
    assert error["type"] == "invalid_request_error" and unknown in error["param"]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"mode": "of"}, "off"),
        ({"verify": "exakt"}, "exact"),
        ({"drafters": ["sufix"]}, "suffix"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": "many"}, "max_nodes"),
    ],
)
def test_t15b_a_value_that_cannot_be_is_a_400_too(server: Asker, way: Json, words: str) -> None:
    error = server.complete(PROMPT, 400, speculative=way)["error"]
    assert words in error["message"] and error["type"] == "invalid_request_error"
    assert error["param"].startswith("speculative")


def serve(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`slipstream serve` where it cannot come to serving."""
    command = [sys.executable, "-m", "slipstream", "serve", "--port", "0", *args]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "http://" not in done.stdout + done.stderr
    for word in words:
        assert word in done.stderr


def test_t15b_an_unknown_option_of_the_command_names_the_nearest() -> None:
    assert_refused(serve("-m", "smollm2-135m", "--paralel", "2"), "--paralel", "--parallel")
    assert_refused(serve("-m", "smollm2-13m"), "smollm2-13m", "smollm2-135m")


# -- (c) speculative: false, and a choice of drafters ----------------------------------------------------------------


@pytest.mark.parametrize("way", [False, {"mode": "off"}], ids=["false", "mode off"])
def test_t15c_plain_decoding_of_one_request_leaves_out_both(server: Asker, way: Any) -> None:
    answer = said(server, speculative=way)
    assert answer["mode"] == "off" and answer["active"] is False and "asked for plain" in answer["reason"]
    assert answer["drafted"] == answer["verified"] == answer["accepted"] == 0 and answer["by_drafter"] == {}
    assert set(said(server)["by_drafter"]) == {"suffix", "hits"}, "the next request drafts again"


def test_t15c_only_the_drafters_that_were_named(server: Asker) -> None:
    for name in ("suffix", "hits"):
        answer = said(server, speculative={"drafters": [name]})
        assert set(answer["by_drafter"]) == {name} and answer["active"] is True
    answer = said(server, speculative={"drafters": []})
    assert answer["drafted"] == 0 and answer["active"] is False and answer["reason"]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_t15c_max_nodes_bounds_every_step(server: Asker, nodes: int) -> None:
    way = {"max_nodes": nodes, "detail": True}
    chunks = list(server.stream(PROMPT, max_tokens=40, speculative=way))
    steps = [c["speculative"]["step"] for c in chunks if (c.get("speculative") or {}).get("step")]
    assert max(s["verified"] for s in steps) == nodes and sum(s["verified"] for s in steps) > nodes
    last = report(chunks)
    for name in ("verified", "accepted", "padded"):
        assert last[name] == sum(s[name] for s in steps)
    assert last["emitted"] + last["first_tokens"] == sum(s["emitted"] for s in steps) == 40
    segments = [s for c in chunks for s in (c.get("speculative") or {}).get("segments", [])]
    plain = server.complete(PROMPT, max_tokens=40, speculative=False)["choices"][0]["text"]
    assert "".join(s["text"] for s in segments) == plain
    assert sum(len(s["text"]) for s in segments if s["origin"] != "target") == last["accepted"]


def test_t15c_the_verifier_that_was_asked_for_is_the_one_that_is_used() -> None:
    """Exact gives plain's text for every seed; the others draw by other rules, as the engine by itself does."""
    warm = SamplingParams(temperature=1.0, seed=3)
    with live(lambda: toy_engine(TABLE, N, Wrong(TABLE, N), 4)) as url:
        for verify in ("exact", "rejection", "block", "typical"):
            fields = {"temperature": 1.0, "seed": 3, "speculative": {"verify": verify}}
            answer = Asker(url).complete(PROMPT, max_tokens=200, **fields)
            assert answer["speculative"]["verify"] == verify and answer["speculative"]["lossy"] is (verify == "typical")
            alone = toy_engine(TABLE, N, Wrong(TABLE, N), 4, verify=verify).generate(
                PROMPT, max_tokens=200, sampling=warm
            )
            plain = toy_engine(TABLE, N).generate(PROMPT, max_tokens=200, sampling=warm)
            assert answer["choices"][0]["text"] == alone.text
            assert (alone.text == plain.text) is (verify == "exact")


def test_t15c_a_whole_answer_has_its_segments_too(server: Asker) -> None:
    answer = server.complete(PROMPT, max_tokens=40, speculative={"detail": True})
    segments = answer["speculative"]["segments"]
    assert "".join(s["text"] for s in segments) == answer["choices"][0]["text"]
    assert sum(len(s["text"]) for s in segments if s["origin"] != "target") == answer["speculative"]["accepted"]
    assert "segments" not in server.complete(PROMPT, max_tokens=4)["speculative"]


# -- (d) what forces plain decoding, or changes what was asked -------------------------------------------------------


def test_t15d_a_target_that_cannot_take_back_is_served_plainly_and_says_so() -> None:
    def plain() -> Engine:
        return Engine(ToyModel(TABLE, N, recurrent=True, rollback="none"), ToyTokenizer([b"a"] * N))

    with live(plain) as url:
        answer = said(Asker(url))
        assert answer["active"] is False and answer["reason"] and answer["drafted"] == 0


def test_t15d_a_prediction_that_nobody_uses_is_noted(server: Asker) -> None:
    prediction = {"type": "content", "content": "abcabc"}
    answer = server.chat("ab", max_tokens=10, prediction=prediction)
    assert any("prediction was not used" in n for n in answer["speculative"]["notes"])


def test_t15d_a_prediction_that_is_used_counts_as_one() -> None:
    expected = toy_engine(TABLE, N).generate([0, 1], max_tokens=30).text
    with live(lambda: with_template(toy_engine(TABLE, N, PredictedDrafter(), 4))) as url:
        answer = Asker(url).chat("ab", max_tokens=30, prediction={"type": "content", "content": expected})
    assert answer["choices"][0]["message"]["content"] == expected
    spec, details = answer["speculative"], answer["usage"]["completion_tokens_details"]
    assert spec["by_drafter"]["predicted"]["accepted"] > 10 and spec["notes"] == []
    assert details["accepted_prediction_tokens"] == spec["by_drafter"]["predicted"]["accepted"]


def test_t15d_a_lossy_verifier_is_named() -> None:
    with live(lambda: toy_engine(TABLE, N, Wrong(TABLE, N), 4, verify="typical")) as url:
        answer = said(Asker(url), temperature=1.0, seed=3)
        assert answer["lossy"] is True and answer["verify"] == "typical"
        assert any("lossy" in n for n in answer["notes"])
        exact = said(Asker(url), temperature=1.0, seed=3, speculative={"verify": "exact"})
        assert exact["lossy"] is False and exact["notes"] == []


# -- (e) what does not fit is refused before anything serves ---------------------------------------------------------


def shorter(tmp_path: Path) -> str:
    metadata, tensors = tiny_llama()
    return str(write_gguf(tmp_path / "tiny.gguf", metadata, tensors))


def recurrent(tmp_path: Path) -> str:
    metadata, tensors = tiny_llama()
    own = {k.replace("llama.", "mamba."): v for k, v in metadata.items()} | {"general.architecture": "mamba"}
    return str(write_gguf(tmp_path / "mamba.gguf", own, tensors))


@pytest.mark.parametrize(
    ("draft", "words"), [(shorter, ("token",)), (recurrent, ("recurrent",)), (lambda _: "none,suffix", ("none",))]
)
def test_t15e_a_draft_that_does_not_fit_is_an_error_and_no_server(
    smollm2: Path, tmp_path: Path, draft: Callable[[Path], str], words: tuple[str, ...]
) -> None:
    assert_refused(serve("-m", "smollm2-135m", "--draft", draft(tmp_path)), "error: ", *words)
