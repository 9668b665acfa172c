"""`slipstream chat`: a conversation whose cache is kept between turns."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.common import Stoppable, emit_json, open_engine, say
from slipstream.cli.options import EngineOptions, Json, MaxTokens, SamplingOptions, check_bias, grouped
from slipstream.errors import ContextError

if TYPE_CHECKING:
    from slipstream.core.types import SamplingParams
    from slipstream.engine import Engine
    from slipstream.generation import Result

EPILOG = (
    'Example: slipstream chat -m smollm2-135m\n\nExample: printf "Hello\\n/exit\\n" | slipstream chat -m smollm2-135m'
)


@grouped
def command(
    engine: EngineOptions = ...,  # type: ignore[assignment]
    sampling: SamplingOptions = ...,  # type: ignore[assignment]
    max_tokens: MaxTokens = 512,
    system: Annotated[str | None, typer.Option("--system", help="A system message to begin with.")] = None,
    as_json: Json = False,
) -> int:
    """Talk to a model. /reset begins anew, /exit or Ctrl-D ends; Ctrl-C cuts a reply short.

    With --json nothing is shown until the end; then come all turns as one object.
    """
    params = sampling.params()
    with open_engine(engine) as opened:
        check_bias(opened, params)
        chat = Conversation(opened, params, max_tokens, system, quiet=as_json)
        code = 0
        if not opened.tokenizer.chat_template:
            say("note: this model has no chat template, so ChatML is used; it may not be made for chats")
        if sys.stdin.isatty():
            say("/reset begins anew, /exit ends")
        try:
            while (line := _read()) is not None and line != "/exit":
                if line == "/reset":
                    chat.reset()
                elif line:
                    chat.turn(line)
        except KeyboardInterrupt:  # at the prompt, or a second one during a reply
            say()
            code = 130
    if as_json:
        emit_json({"turns": chat.turns, "status": opened.status})
    return code


def _read() -> str | None:
    """A line from the user; None at the end of input."""
    try:
        if sys.stdin.isatty():
            return input("> ").strip()
        line = sys.stdin.readline()
        return line.strip() if line else None
    except EOFError:
        return None


class Conversation:
    """Messages so far; each turn sends them all, and the engine evaluates only what its cache lacks."""

    def __init__(
        self, engine: Engine, params: SamplingParams, max_tokens: int, system: str | None, quiet: bool
    ) -> None:
        self._engine, self._params, self._max_tokens, self._quiet = engine, params, max_tokens, quiet
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self.turns: list[dict[str, Any]] = []

    def reset(self) -> None:
        self._messages = list(self._start)
        say("a new conversation")

    def turn(self, text: str) -> None:
        """Ask and print the answer. A prompt that no longer fits is refused, and the conversation stays as it was."""
        from slipstream.advise.measure import run
        from slipstream.cli.show import ColouredText
        from slipstream.generation import Request

        asked = [*self._messages, {"role": "user", "content": text}]
        request = Request(messages=asked, max_tokens=self._max_tokens, sampling=self._params, reuse_cache=True)
        out = ColouredText(legend=False)
        try:
            with Stoppable() as stopped:
                result = run(self._engine, request, lambda c: None if self._quiet else out.write(c.segments), stopped)
        except ContextError as e:
            say(f"error: {e.message}\nhint: /reset begins anew; a larger --ctx holds more")
            return
        if not self._quiet:
            out.end()
        self._messages = [*asked, {"role": "assistant", "content": result.text}]
        self.turns.append({"user": text, "interrupted": stopped.hit, **result.as_dict()})
        say(_line(result))
        for note in result.notes:
            say(f"note: {note}")


def _line(r: Result) -> str:
    from slipstream.cli.show import number, percent

    accepted = f", {percent(r.stats.acceptance_rate)} accepted" if r.stats.verified else ""
    cached = f"{r.usage.cached_tokens} of {r.usage.prompt_tokens} prompt tokens cached"
    return f"[{r.usage.completion_tokens} tokens, {number(r.stats.tokens_per_second)} tok/s{accepted}; {cached}]"
