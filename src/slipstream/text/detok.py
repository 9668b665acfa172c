"""Text out of tokens, one at a time: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.errors import InputError


@dataclass(frozen=True)
class Segment:
    """A piece of text and who proposed the token that completed it."""

    text: str
    origin: str


class TextStream:
    """Push bytes of tokens, get text that can be shown.

    Text that could be the beginning of a stop string is held back until it is clear. An incomplete character at the
    end is dropped, as in plain decoding, since no replacement character may appear that the model did not write.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if any(not s for s in stops):
            raise InputError("a stop string is empty", "leave it out")
        self.stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Segment] = []
        self.stopped = False

    def push(self, data: bytes, origin: str) -> list[Segment]:
        """Text released by this token. After it, `stopped` says whether a stop string was completed."""
        new = self._decoder.decode(data)
        if not self.stops:
            return [Segment(new, origin)] if new else []
        if new:
            self._held.append(Segment(new, origin))
        held = "".join(s.text for s in self._held)
        found = [at for stop in self.stops if (at := held.find(stop)) >= 0]
        if found:
            self.stopped = True
            out = self._release(min(found))
            self._held = []
            return out
        return self._release(len(held) - self._could_begin_stop(held))

    def finish(self) -> list[Segment]:
        """What was held back, when no stop string came of it."""
        return self._release(None)

    def _could_begin_stop(self, held: str) -> int:
        """Length of the longest end of `held` that begins a stop string."""
        longest = 0
        for stop in self.stops:
            for n in range(min(len(stop) - 1, len(held)), longest, -1):
                if held.endswith(stop[:n]):
                    longest = n
                    break
        return longest

    def _release(self, n_chars: int | None) -> list[Segment]:
        """The first `n_chars` characters of what is held (None: all)."""
        out, rest, left = [], [], sum(len(s.text) for s in self._held) if n_chars is None else n_chars
        for s in self._held:
            head, tail = s.text[:left], s.text[left:]
            left -= len(head)
            if head:
                out.append(Segment(head, s.origin))
            if tail:
                rest.append(Segment(tail, s.origin))
        self._held = rest
        return out
