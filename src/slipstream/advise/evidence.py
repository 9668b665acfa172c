"""What an advice has found out so far, on disk: an interrupted one goes on where it was, and what-if asks it again.

It holds the answers as token ids, so it stays in the cache folder, readable by its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.advise.advice import Texts
from slipstream.advise.played import RANKS, Heard
from slipstream.core.cost import Curve
from slipstream.core.types import SamplingParams
from slipstream.errors import InputError
from slipstream.hub import cache_dir
from slipstream.hub.cache import read_json, write_json

log = logging.getLogger("slipstream")
FORMAT = 1
TARGET = "target"


@dataclass(frozen=True)
class Run:
    """One prompt decoded once. `seconds` and `steps` are of decoding, `tokens` those that came from it (the first one
    belongs to the prompt); `verified_at[i]` counts drafts that had a token at depth i + 1, `accepted_at[i]` those whose
    token there was accepted; `texts` is what comparing with plain decoding said."""

    seconds: float
    tokens: int
    first_token_s: float
    steps: int = 0
    verified: int = 0
    accepted: int = 0
    verified_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    texts: Texts = "not compared"
    segments: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Evidence:
    """By prompt key: what the target said, what draft models would have guessed, and rounds of runs by way to draft.

    By model: price lists, and the bytes that memory grew by when it was loaded and used.
    """

    path: Path | None = None
    answers: dict[str, list[int]] = field(default_factory=dict)
    likely: dict[str, list[list[tuple[int, float]]]] = field(default_factory=dict)  # probabilities of each token
    heard: dict[str, dict[str, Heard]] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # keys of the draft models' files
    overhead_s: float = 0.0  # what choosing and checking add to a step
    rounds: dict[str, list[dict[str, Run]]] = field(default_factory=dict)
    _warned: bool = False

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Empty when there is none, or it is damaged or of another version."""
        value = read_json(path)
        try:
            return cls._of(path, value) if isinstance(value, dict) and value["format"] == FORMAT else cls(path)
        except (KeyError, TypeError, ValueError, AttributeError, InputError):
            return cls(path)

    @classmethod
    def _of(cls, path: Path, value: dict[str, Any]) -> Evidence:
        return cls(
            path,
            {key: [int(t) for t in said] for key, said in value["answers"].items()},
            {k: [[(int(t), float(p)) for t, p in each] for each in rows] for k, rows in value["likely"].items()},
            {model: {k: _heard(h) for k, h in heard.items()} for model, heard in value["heard"].items()},
            {model: Curve.of(curve) for model, curve in value["curves"].items()},
            dict(value["memory"]),
            dict(value["files"]),
            float(value["overhead_s"]),
            {k: [{d: Run(**run) for d, run in r.items()} for r in rounds] for k, rounds in value["rounds"].items()},
        )

    def recognise(self, model: str, file: str) -> None:
        """Forget what is known of a draft model whose name is another file now."""
        if self.files.get(model, file) != file:
            self.heard.pop(model, None)
            self.curves.pop(model, None)
            self.memory.pop(model, None)
            for name, rounds in self.rounds.items():
                self.rounds[name] = [{d: run for d, run in r.items() if model not in d} for r in rounds]
        self.files[model] = file

    def renew(self) -> None:
        """Forget what was measured of models, so that it is measured anew; answers and runs go one by one."""
        self.curves.clear()
        self.memory.clear()

    def forget(self, name: str) -> None:
        """One prompt, by its key. Those of other workloads stay."""
        stores: list[dict[str, Any]] = [self.answers, self.likely, self.rounds, *self.heard.values()]
        for known in stores:
            known.pop(name, None)

    def write(self) -> None:
        """Replace the file whole; a disk that is full costs the resuming, not the advice."""
        if self.path is None:
            return
        value = {
            "format": FORMAT,
            "answers": self.answers,
            "likely": self.likely,
            "heard": {model: {k: _plain(h) for k, h in heard.items()} for model, heard in self.heard.items()},
            "curves": {model: curve.as_dict() for model, curve in self.curves.items()},
            "memory": self.memory,
            "files": self.files,
            "overhead_s": self.overhead_s,
            "rounds": {k: [{d: asdict(run) for d, run in r.items()} for r in rs] for k, rs in self.rounds.items()},
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json(self.path, value)
            os.chmod(self.path, 0o600)
        except OSError as e:
            if not self._warned:
                log.warning("what is found out cannot be kept for --resume and --what-if: %s", e.strerror or e)
            self._warned = True


def place(*about: object) -> Path:
    """Where the evidence on a target with these settings is kept."""
    return cache_dir() / "advice" / f"{_digest(about)}.json"


def key(prompt: Sequence[int], max_tokens: int, params: SamplingParams) -> str:
    """Of a prompt that is answered in this way."""
    return _digest([list(prompt), max_tokens, params.temperature, params.seed])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:24]


def _plain(heard: Heard) -> dict[str, Any]:
    each = {str(window): (heard.guess[window].tolist(), heard.sure[window].tolist()) for window in heard.guess}
    return {"guesses": each, "overlap": None if heard.overlap is None else heard.overlap.tolist()}


def _heard(value: dict[str, Any]) -> Heard:
    each, overlap = value["guesses"].items(), value["overlap"]
    return Heard(
        {int(w): np.array(guess, np.int64).reshape(-1, RANKS) for w, (guess, _) in each},
        {int(w): np.array(sure, np.float32).reshape(-1, RANKS) for w, (_, sure) in each},
        None if overlap is None else np.array(overlap, np.float32),
    )
