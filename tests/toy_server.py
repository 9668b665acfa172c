"""A server with a toy model of bytes: as a child process for the tests that mistreat it, and its parts for others."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.core.policy import Fixed
from slipstream.core.types import Array, Span
from slipstream.drafters.predicted import PredictedDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.models.toy import ToyModel, ToyTokenizer, markov
from slipstream.serve.options import ServeOptions
from slipstream.serve.run import Server

END, N_VOCAB = 256, 257
TABLE = markov(N_VOCAB, order=2, seed=5)  # computed anew each time: nothing of it stays in memory


class ByteModel(ToyModel):
    """As a native model does, it lets other threads run while it computes."""

    def __init__(self, n_ctx: int = 512, n_slots: int = 4) -> None:
        super().__init__(TABLE, N_VOCAB, n_ctx, n_slots)

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        time.sleep(0.0005)
        return super().forward(spans)


def byte_engine(model: ToyModel | None = None) -> Engine:
    """Any text can be a prompt: a token is a byte, and one more ends the text."""
    tokenizer = ToyTokenizer([*(bytes([i]) for i in range(END)), b""], (END,))
    tokenizer.encode = lambda text, special=False: list(text.encode("utf-8", "replace"))  # type: ignore[method-assign]
    drafters = [SuffixDrafter(min_match=1), PredictedDrafter()]
    return Engine(model or ByteModel(), tokenizer, drafters, Fixed(4), name="toy.gguf")


class Child:
    """This file as a process. Within it, `url` answers; what it logs goes to the file `log`."""

    def __init__(self, log: Path, **options: Any) -> None:
        self._log = log.open("w")
        command = [sys.executable, __file__, json.dumps(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()
        assert self.url, log.read_text()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


def main(arguments: Sequence[str]) -> int:
    """`options` as JSON; the address is the first line on stdout."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    options = ServeOptions(port=0, **json.loads(arguments[0] if arguments else "{}"))
    return Server(byte_engine, options, lambda url: print(url, flush=True)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
