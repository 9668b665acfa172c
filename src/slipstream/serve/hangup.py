"""A client that goes away ends the work that is done for it, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class Gone(Exception):
    """The client has hung up: nobody waits for an answer."""


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What `work` gives; raises Gone, with the work cancelled and its cleaning up done, when the client hangs up first.

    The request's body must have been read.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
