"""`slipstream audit`: is the text still the target's own?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.bench import provenance_of
from slipstream.cli.common import Stoppable, emit_json, open_engine, say
from slipstream.cli.options import EngineOptions, Json, MaxTokens, grouped
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.audit import Check
    from slipstream.advise.measure import Work

EPILOG = "Example: slipstream audit -m smollm2-135m\n\nExample: slipstream audit -m T.gguf --draft D.gguf --n 50 --json"
K = 4


@grouped
def command(
    engine: EngineOptions = ...,  # type: ignore[assignment]
    prompts: Annotated[Path | None, typer.Option("--prompts", help="JSON Lines, as for bench.")] = None,
    n: Annotated[int, typer.Option("--n", metavar="N", help="Most prompts to compare.")] = 10,
    max_tokens: MaxTokens = 48,
    draws: Annotated[int, typer.Option("--draws", metavar="N", help="Seeds for each chi-square test; 0: none.")] = 200,
    as_json: Json = False,
) -> int:
    """Check that drafting changes nothing but time. Exit code 1 when a check fails.

    Four tokens are drafted at every step, unless --k or --policy say otherwise. With --verify rejection, block or
    typical only what that verifier promises is looked at; for typical, which promises nothing, its distance from the
    target is measured.

    Greedy text and sampled text with the same seed must be plain decoding's own, token for token; a difference passes
    only at a near tie, where the token said was less than 0.7 logits behind the best. For rejection and block
    verification the distribution is tested by chi-square; a sound build fails one audit in a thousand.
    """
    from slipstream.advise.audit import FALSE_ALARM

    if engine.k is None and engine.policy is None:  # what is never drafted would not be tested
        engine.k = K
    if n < 1 or draws < 0:
        raise InputError("--n must be 1 or more and --draws 0 or more", "leave them out for the defaults")
    works = _works(prompts, n)
    with Stoppable() as stopped:
        checks = _texts(engine, works, max_tokens, stopped) if engine.verify == "exact" else []
        if draws and not stopped.hit:
            checks += _distributions(engine, draws, stopped)
    failed = [c for c in checks if c.passed is False]
    if as_json:
        emit_json(
            {
                "passed": not failed and not stopped.hit,
                "checks": [c.as_dict() for c in checks],
                "false_alarm_rate": FALSE_ALARM,
                "interrupted": stopped.hit,
                "provenance": provenance_of(engine),
            }
        )
    if stopped.hit:
        return 130
    return 1 if failed else 0


def _works(prompts: Path | None, n: int) -> list[Work]:
    from slipstream.advise.measure import Work
    from slipstream.advise.workload import load
    from slipstream.data import demo_prompts

    if prompts is None:
        return [Work(kind, prompt) for kind, prompt in demo_prompts()][:n]
    loaded = load(prompts)
    for where, reason in loaded.bad:
        say(f"warning: {prompts.name}, {where} is left out: {reason}")
    return list(loaded.works[:n])


def _texts(options: EngineOptions, works: list[Work], max_tokens: int, stopped: Stoppable) -> list[Check]:
    from slipstream.advise import audit

    with open_engine(options) as engine:
        if not engine.drafters or not engine.policy.most.nodes:
            raise InputError(f"nothing to audit: {engine.status['reason']}", "give a --draft and a --k above 0")
        temperatures = (0.0, audit.TEMPERATURE)
        return [_say(audit.same_text(engine, works, max_tokens, t, stopped)) for t in temperatures if not stopped.hit]


def _distributions(options: EngineOptions, draws: int, stopped: Stoppable) -> list[Check]:
    """Opened anew: with these verifiers a draft model draws its tokens in another way."""
    from slipstream.advise import audit

    verifiers = [options.verify]
    if options.verify == "exact":
        verifiers = ["rejection", "block"] if options.width in (None, 1) else ["rejection"]
    level = audit.FALSE_ALARM / (2 * len(verifiers))  # two tests each; Bonferroni
    with open_engine(replace(options, verify=verifiers[0])) as engine:
        return [_say(c) for v in verifiers for c in audit.distribution(engine, v, draws, level, stopped)]


def _say(check: Check) -> Check:
    word = {True: "ok", False: "FAILS", None: "not tested"}[check.passed]
    print(f"{word:10}  {check.name}: {check.detail}", flush=True)
    for d in check.facts.get("differences", ()):
        print(f"{'':10}  prompt {d['prompt']}: {d['verdict']} at token {d['at'] + 1}, gap {d['gap']:.3f} logits")
    return check
