"""One sequence being generated: its tokens, its limits, and what the loop may do for it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from slipstream.core.ports import Constraint
from slipstream.core.sampling import Sampler, log_probs
from slipstream.core.types import Array, FinishReason, SamplingParams, StepRecord
from slipstream.core.verify import Verify, exact

TARGET_ORIGIN = "target"


@dataclass(frozen=True)
class Token:
    """One delivered token. `origin` is the drafter that proposed it, or "target".

    Log-probabilities are the model's own, before any sampling setting, in nats.
    """

    id: int
    origin: str
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Sequence:
    """Tokens of one slot. `limit` is the most tokens it may hold, prompt and output together.

    `constraint` is used up. `only`: names of the drafters that may draft, None for all; with no drafter nothing is
    drafted, not even what a constraint forces. `max_nodes`: drafted tokens in one forward, at most.
    """

    def __init__(
        self,
        slot: int,
        prompt: Seq[int],
        params: SamplingParams,
        limit: int,
        ends: frozenset[int] = frozenset(),
        verify: Verify = exact,
        drafting: bool = True,
        logprobs: int | None = None,
        constraint: Constraint | None = None,
        only: frozenset[str] | None = None,
        max_nodes: int | None = None,
    ) -> None:
        self.slot, self.params, self.limit, self.ends = slot, params, limit, ends
        self.verify, self.drafting, self.logprobs = verify, drafting, logprobs
        self.constraint, self.only, self.max_nodes = constraint, only, max_nodes
        self.tokens: list[int] = list(prompt)
        self.n_prompt = len(prompt)
        self.sampler = Sampler(params, prompt, constraint)
        self.finish: FinishReason | None = None if self.left > 0 else "length"
        if self.finish is None and constraint is not None and constraint.done:
            self.finish = "stop"

    @property
    def left(self) -> int:
        """Tokens that may still be delivered."""
        return self.limit - len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.n_prompt :]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.sampler.append(token)

    def cut(self, n_output: int) -> None:
        """Take back delivered tokens beyond the first `n_output` (a stop string ended there)."""
        taken = len(self.output) - n_output
        del self.tokens[self.n_prompt + n_output :]
        self.sampler = Sampler(self.params, self.tokens[: self.n_prompt])
        for token in self.output:
            self.sampler.append(token)
        if self.constraint is not None:
            self.constraint.take_back(max(taken, 0))
        self.sampler.constraint = self.constraint

    def deliver(self, token: int, origin: str, row: Array) -> Token:
        """Append the token. One behind which nothing may follow ends the sequence: no forward to hear an end token."""
        self.append(token)
        if self.constraint is not None and self.constraint.done:
            self.finish = "stop"
        if self.logprobs is None:
            return Token(token, origin)
        own, top = log_probs(row, token, self.logprobs)
        return Token(token, origin, own, tuple(top))


@dataclass(frozen=True)
class Emission:
    """What one step gave one sequence: its new tokens (none while its prompt is read) and the record of the step."""

    sequence: Sequence
    tokens: tuple[Token, ...]
    record: StepRecord
