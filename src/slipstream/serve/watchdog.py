"""Whether the thread that owns the models still moves; and when it does not, an error for everybody who waits."""

from __future__ import annotations

import asyncio
import logging

from slipstream.aio import AsyncEngine
from slipstream.worker import State

log = logging.getLogger("slipstream")
_OFTEN = 1.0  # seconds between two looks, at most


def health(state: State, stall_seconds: float) -> tuple[str, str]:
    """The status that /health gives (ok, stuck, crashed or closed), and the reason where it is not ok."""
    if state.status != "ok":
        return state.status, state.reason or "the server is shutting down"
    if state.busy_s > stall_seconds:
        return "stuck", f"one step has taken {state.busy_s:.0f} s already"
    return "ok", ""


async def watch(engine: AsyncEngine, stall_seconds: float) -> None:
    """Until it is cancelled: end every request while a step takes longer than `stall_seconds`.

    Those that come meanwhile are ended at the next look. When the step returns, all is as before.
    """
    was_stuck = False
    while True:
        await asyncio.sleep(min(_OFTEN, stall_seconds / 4))
        status, reason = health(engine.state, stall_seconds)
        stuck = status == "stuck"
        if stuck:
            engine.give_up(f"the models' thread hangs: {reason}")
        if stuck != was_stuck:
            log.error("%s: every request is ended", reason) if stuck else log.warning("the hanging step has come back")
        was_stuck = stuck
