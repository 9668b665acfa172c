"""The engine: owns a target, a drafter and their slots; `generate()`, `stream()`, or `submit()` and `step()`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slipstream.core.loop import Loop
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Expecting, Model, Policy
from slipstream.core.sequence import Sequence as TokenSequence
from slipstream.core.verify import LOSSY, verifier
from slipstream.drafting import DEFAULT
from slipstream.errors import CapabilityError, ContextError, InputError, UsageError
from slipstream.generation import Chunk, Generation, Request, Result
from slipstream.text.chat import render
from slipstream.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from slipstream.drafting import Draft
    from slipstream.opening import OpenOptions


class Engine:
    """Speculative decoding with one target. Belongs to the thread that made it (AsyncEngine serves the others).

    Raises CapabilityError when the target cannot take back rejected tokens, InputError for settings that do not go
    together.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        drafter: Drafter | Sequence[Drafter] | None = None,
        policy: Policy | None = None,
        verify: str = "exact",
        name: str = "target",
        owned: Sequence[Model] = (),
    ) -> None:
        self.model, self.tokenizer, self.verify, self.name = model, tokenizer, verify, name
        self.drafters: tuple[Drafter, ...] = several(drafter)
        self._owned = [model, *owned]
        self._closed = False
        self._thread = threading.get_ident()
        self._loop = Loop(model, self.drafters, policy or Fixed(4), time.perf_counter)
        verifier(verify, self.policy.most.width)
        if self.drafters and model.caps.rollback == "none":
            raise CapabilityError(
                f"{name} cannot take back rejected tokens, so nothing can be drafted for it", "use --draft none"
            )
        self._active: dict[int, Generation] = {}
        self._cached: list[list[int]] = [[] for _ in range(model.caps.n_slots)]

    @classmethod
    def open(cls, target: str, draft: Draft = DEFAULT, options: OpenOptions | None = None, **settings: Any) -> Engine:
        """Open models by catalogue name, path or hf:owner/repo/file.gguf.

        `draft` names drafters and at most one model ("suffix,recycle,qwen2.5-coder-0.5b"), is a Drafter or several, or
        None for plain decoding. Settings are the fields of OpenOptions; an unknown one raises UnknownName with the
        nearest. Everything is checked before anything is loaded: files, vocabularies of the pair, memory, and that the
        native build runs on this machine.
        """
        from slipstream.opening import open_engine

        return open_engine(cls, target, draft, options, settings)

    # -- one request ----------------------------------------------------------------------------------------------

    def generate(self, prompt: str | Sequence[int] | None = None, **request: Any) -> Result:
        """Run one request to its end. Keywords are the fields of Request."""
        generation = self.submit(Request(prompt, **request))
        for _ in self._run(generation):
            pass
        return generation.result()

    def stream(self, prompt: str | Sequence[int] | None = None, **request: Any) -> Iterator[Chunk]:
        """The same, a chunk at a time; closing the iterator cancels the request."""
        yield from self._run(self.submit(Request(prompt, **request)))

    def _run(self, generation: Generation) -> Iterator[Chunk]:
        """Chunks of one request, those included that came from steps which others asked for."""
        generation.backlog = backlog = deque[Chunk]()
        try:
            while backlog or not generation.done:
                if backlog:
                    yield backlog.popleft()
                else:
                    self.step()
        finally:
            if not generation.done:
                self.cancel(generation)

    # -- several requests -----------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Generation:
        """Give a request a free slot.

        Raises ContextError for a prompt that does not fit, InputError for an empty one, UsageError without a free slot.
        """
        self._check_thread()
        prompt = self._tokens(request)
        n_ctx = self.model.caps.n_ctx
        if len(prompt) > n_ctx:
            raise ContextError(
                f"the prompt has {len(prompt)} tokens and the context holds {n_ctx}", "use a larger --ctx"
            )
        if not prompt:
            raise InputError("the prompt is empty", "give at least one character")
        verify = request.verify or self.verify
        how = verifier(verify, self.policy.most.width)
        slot = self._free_slot(prompt if request.reuse_cache else ())
        cached = self._prepare(slot, prompt, request.reuse_cache)
        seq = TokenSequence(
            slot,
            prompt,
            request.sampling,
            n_ctx if request.max_tokens is None else min(n_ctx, len(prompt) + request.max_tokens),
            frozenset() if request.ignore_end else self.tokenizer.ends,
            how,
            request.speculative and bool(self.drafters),
            request.logprobs,
        )
        self._expect(slot, request)
        generation = Generation(seq, self.tokenizer, request.stop, cached, self._notes(request, verify))
        if not generation.done:
            self._loop.begin(seq)
            self._active[slot] = generation
        return generation

    def step(self) -> dict[Generation, Chunk]:
        """One forward for every request that runs; what it added to each."""
        self._check_thread()
        if not self._active:
            raise UsageError("no request is running", "submit one first")
        try:
            chunks = {}
            for emission in self._loop.step([g.sequence for g in self._active.values()]):
                generation = self._active[emission.sequence.slot]
                chunks[generation] = generation.take(emission)
                if generation.done:
                    self._release(generation)
            return chunks
        except BaseException:
            self._abandon()
            raise

    def cancel(self, generation: Generation) -> Chunk:
        """End a request here; its slot is free at once."""
        self._check_thread()
        chunk = generation.cancel()
        if self._active.get(generation.sequence.slot) is generation:
            self._release(generation)
        return chunk

    def reset(self) -> None:
        """Empty every free slot: the next request finds nothing of an earlier one."""
        self._check_thread()
        for slot in range(self.model.caps.n_slots):
            if slot not in self._active:
                self.model.truncate(slot, 0)
                self._cached[slot] = []

    def close(self) -> None:
        """Free the models; safe to call twice. Whatever is asked of the engine afterwards is refused."""
        self._closed = True
        self._active.clear()
        for model in self._owned:
            model.close()
        self._owned = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """How much is drafted; another one may be set while no request runs."""
        return self._loop.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._check_thread()
        if self._active:
            raise UsageError("a request is running", "set the policy before or after it")
        verifier(self.verify, policy.most.width)
        self._loop.policy = policy

    @property
    def status(self) -> dict[str, Any]:
        """What is active, and why not if not."""
        reason = ""
        if not self.drafters:
            reason = "no drafter was given"
        elif not self.policy.most.nodes:
            reason = "the policy drafts nothing (k is 0, or it is off)"
        return {
            "target": self.name,
            "drafter": "+".join(d.name for d in self.drafters) or None,
            "drafters": self.policy.report(),
            "verify": self.verify,
            "lossy": self.verify in LOSSY,
            "active": not reason,
            "reason": reason,
        }

    def _expect(self, slot: int, request: Request) -> None:
        """Tell the drafters that can use it what the answer is expected to be like."""
        if request.prediction is None:
            return
        text = request.prediction
        ids = self.tokenizer.encode(text) if isinstance(text, str) else [int(t) for t in text]
        for drafter in self.drafters:
            if isinstance(drafter, Expecting):
                drafter.expect(slot, ids)

    def _notes(self, request: Request, verify: str) -> list[str]:
        notes = []
        if request.prediction is not None and not any(isinstance(d, Expecting) for d in self.drafters):
            notes.append("the prediction was not used: no drafter takes one (add predicted to the drafters)")
        if not request.speculative:
            notes.append("drafting was off: the request asked for plain decoding")
        elif self.status["reason"]:
            notes.append(f"drafting was off: {self.status['reason']}")
        if verify in LOSSY and request.speculative and not request.sampling.greedy:
            notes.append(f"lossy: {verify} lets plausible tokens through, so this is not the target's own text")
        return notes

    def _check_thread(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed", "open it again, or work inside its `with` block")
        if threading.get_ident() != self._thread:
            raise UsageError("an Engine belongs to the thread that opened it", "use slipstream.AsyncEngine")

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        """Tokens of a conversation through the model's own template."""
        self._check_thread()
        t = self.tokenizer
        return t.encode(render(messages, t.chat_template, t.bos, t.eos), special=True)

    def _tokens(self, request: Request) -> list[int]:
        if request.messages is not None:
            return self.encode_chat(request.messages)
        if isinstance(request.prompt, str):
            return self.tokenizer.encode(request.prompt)
        ids = [int(t) for t in request.prompt or ()]
        if any(not 0 <= t < self.model.caps.n_vocab for t in ids):
            raise InputError(
                "a token id lies outside the vocabulary", f"ids go from 0 to {self.model.caps.n_vocab - 1}"
            )
        return ids

    def _free_slot(self, prompt: Sequence[int]) -> int:
        free = [i for i in range(self.model.caps.n_slots) if i not in self._active]
        if not free:
            raise UsageError(f"all {self.model.caps.n_slots} slots are busy", "open the engine with more n_slots")
        # The most to reuse; failing that, the least to lose.
        return max(free, key=lambda i: (_common(self._cached[i], prompt), -len(self._cached[i])))

    def _prepare(self, slot: int, prompt: Sequence[int], reuse: bool) -> int:
        """Cut the slot to what it shares with the prompt; how many tokens that is."""
        held = self._cached[slot]
        same = min(_common(held, prompt), len(prompt) - 1) if reuse else 0
        if same < len(held) and self.model.caps.rollback != "free":
            same = 0
        self.model.truncate(slot, same)
        self._cached[slot] = list(prompt[:same])
        return same

    def _release(self, generation: Generation) -> None:
        seq = generation.sequence
        generation.drafters = self.policy.report() if seq.drafting else {}
        self._loop.end(seq)
        del self._active[seq.slot]
        n = min(self.model.n_past(seq.slot), len(seq.tokens))
        if n < self.model.n_past(seq.slot):  # a stop string cut tokens that the cache holds
            n = n if self.model.caps.rollback == "free" else 0
            self.model.truncate(seq.slot, n)
        self._cached[seq.slot] = seq.tokens[:n]

    def _abandon(self) -> None:
        """A step failed half way: no slot can be trusted, so all are emptied and every request ends."""
        for generation in list(self._active.values()):
            generation.cancel()
            with suppress(Exception):  # a drafter may be what failed
                self._loop.end(generation.sequence)
            self.model.truncate(generation.sequence.slot, 0)
            self._cached[generation.sequence.slot] = []
        self._active.clear()


def several(drafter: Drafter | Sequence[Drafter] | None) -> tuple[Drafter, ...]:
    """One, several or no drafters as a tuple."""
    if drafter is None:
        return ()
    return tuple(drafter) if isinstance(drafter, Sequence) else (drafter,)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
