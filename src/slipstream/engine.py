"""The engine: owns a target, a drafter and their slots; `generate()`, `stream()`, or `submit()` and `step()`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slipstream.core.constrained import GRAMMAR
from slipstream.core.cut import cut
from slipstream.core.loop import Loop
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Expecting, Model, Policy, Resumable
from slipstream.core.priced import Priced
from slipstream.core.sequence import Sequence as TokenSequence
from slipstream.core.verify import LOSSY, verifier
from slipstream.drafting import DEFAULT
from slipstream.errors import CapabilityError, ContextError, InputError, RollbackError, UnknownName, UsageError
from slipstream.generation import Chunk, Generation, Request, Result
from slipstream.shelf import Shelf, Shelved, common
from slipstream.text.chat import render
from slipstream.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from slipstream.drafting import Draft
    from slipstream.opening import OpenOptions
    from slipstream.text.grammar import Grammars

_WORTH = 32  # tokens: what would not save the reading of so many is not put aside


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
        cache_ram: int = 0,
    ) -> None:
        """`cache_ram`: bytes for states of sequences that have lost their slot."""
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
        self._used = [0] * model.caps.n_slots  # when each slot was last given away, counted in requests
        self.shelf = Shelf(cache_ram if isinstance(model, Resumable) else 0)

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
        only = self._only(request)
        slot, cached = self._place(prompt, request.reuse_cache)
        seq = TokenSequence(
            slot,
            prompt,
            request.sampling,
            n_ctx if request.max_tokens is None else min(n_ctx, len(prompt) + request.max_tokens),
            frozenset() if request.ignore_end else self.tokenizer.ends,
            how,
            request.speculative and bool(self.drafters if only is None else only),
            request.logprobs,
            None if request.constraint is None else request.constraint.fork(),
            only,
            request.max_nodes,
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
        self.shelf.clear()

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

    def prices(self, context: int = 256) -> dict[str, list[tuple[int, float]]]:
        """Seconds of forwards of 1, 2, … tokens behind so much context, by model; nothing where none are used."""
        return self.policy.table(context) if isinstance(self.policy, Priced) else {}

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles what an answer shall keep to (Request.constraint)."""
        from slipstream.text.grammar import Grammars

        return Grammars(self.tokenizer, self.model.caps.n_vocab)

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
        elif request.drafters is not None and not request.drafters:
            notes.append("drafting was off: the request named no drafter")
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

    def encode_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        """Tokens of a conversation through the model's own template."""
        self._check_thread()
        t = self.tokenizer
        return t.encode(render(messages, t.chat_template, t.bos, t.eos, tools=tools), special=True)

    def _tokens(self, request: Request) -> list[int]:
        if request.messages is not None:
            return self.encode_chat(request.messages, request.tools)
        if isinstance(request.prompt, str):
            return self.tokenizer.encode(request.prompt)
        ids = [int(t) for t in request.prompt or ()]
        if any(not 0 <= t < self.model.caps.n_vocab for t in ids):
            raise InputError(
                "a token id lies outside the vocabulary", f"ids go from 0 to {self.model.caps.n_vocab - 1}"
            )
        return ids

    def _only(self, request: Request) -> frozenset[str] | None:
        """The drafters that this request may use; None: all. Raises UnknownName."""
        if request.drafters is None:
            return None
        known = [d.name for d in self.drafters]
        for name in request.drafters:
            if name not in known:
                raise UnknownName("drafter", name, known or ["none"])
        return frozenset(request.drafters)

    def _place(self, prompt: Sequence[int], reuse: bool) -> tuple[int, int]:
        """A free slot for this prompt, cut to what both begin with; how many tokens that is."""
        free = [i for i in range(self.model.caps.n_slots) if i not in self._active]
        if not free:
            raise UsageError(f"all {self.model.caps.n_slots} slots are busy", "open the engine with more n_slots")
        same = {i: self._reusable(self._cached[i], prompt) if reuse else 0 for i in free}
        shelved, kept = self.shelf.best(prompt) if reuse else (None, 0)
        kept = self._reusable(shelved.tokens, prompt) if shelved else 0
        back = shelved is not None and kept >= max(same.values()) + _WORTH

        def worth(i: int) -> tuple[int, int]:
            """Tokens won less tokens lost; of equals the one that was not used for longest."""
            won = 0 if back else same[i]
            return 2 * won - len(self._cached[i]), -self._used[i]

        slot = max(free, key=worth)
        n = 0 if back else same[slot]
        if back and shelved is not None:
            self.shelf.take(shelved)  # before another state needs its room
        if reuse and len(self._cached[slot]) - n >= _WORTH:
            self._put_aside(slot)
        if back and shelved is not None:
            n = kept if self._bring_back(slot, shelved) else 0
        n = cut(self.model, slot, n)
        self._cached[slot] = list(prompt[:n])
        self._used[slot] = max(self._used) + 1
        return slot, n

    def _reusable(self, held: Sequence[int], prompt: Sequence[int]) -> int:
        """Tokens of a state that a prompt can begin with; its last token is always evaluated."""
        n = min(common(held, prompt), len(prompt) - 1)
        return n if n == len(held) or self.model.caps.rollback == "free" else 0

    def _put_aside(self, slot: int) -> None:
        if not self.shelf.budget or not isinstance(self.model, Resumable):
            return
        drafters = {d.name: d.save(slot) for d in self.drafters if isinstance(d, Resumable)}
        self.shelf.put(Shelved(tuple(self._cached[slot]), self.model.save(slot), drafters))

    def _bring_back(self, slot: int, shelved: Shelved) -> bool:
        """Whether it went in; if not, the prompt is read again."""
        assert isinstance(self.model, Resumable)
        try:
            self.model.load(slot, shelved.target)
            for d in self.drafters:
                if isinstance(d, Resumable):
                    d.load(slot, shelved.drafters[d.name])
        except RollbackError:
            return False
        return True

    def _release(self, generation: Generation) -> None:
        seq = generation.sequence
        words = self.policy.report() if seq.drafting else {}
        if seq.constraint is None:
            words.pop(GRAMMAR, None)  # another request's
        generation.drafters = words
        self._loop.end(seq)
        del self._active[seq.slot]
        n = min(self.model.n_past(seq.slot), len(seq.tokens))
        if n < self.model.n_past(seq.slot):  # a stop string cut tokens that the cache holds
            n = cut(self.model, seq.slot, n)
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
