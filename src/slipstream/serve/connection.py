"""One HTTP connection of uvicorn's, with limits that it lacks: a request has to arrive, an answer has to be read."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.serve import failures

_MARGIN = 2.0  # seconds after the guard's own limit, which answers a slow body politely


def protocol(seconds: float) -> type[H11Protocol]:
    """Connections with `seconds` for a request's head, for its body, and for a client that has stopped reading."""

    class Connection(_Timed):
        limit = seconds

    return Connection


class _Timed(H11Protocol):
    limit: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: object = None  # the part of a request that has begun to come
        self._arrival: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await(self.conn.their_state)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        state = self.conn.their_state
        self._await(None if state is h11.IDLE else state)  # idle: the keep-alive limit holds

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        self.resume_writing()
        self._unset_keepalive_if_required()  # uvicorn forgets it after a reset
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self._reader or self.loop.call_later(self.limit, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def send_400_response(self, msg: str) -> None:
        """In OpenAI's shape, where no answer has begun; the application, if it runs, sees a hang-up."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = failures.encoded(failures.body(400, msg, None, "invalid_http"))
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await(self, part: object) -> None:
        """Give this part of a request its time; None, or a part that nothing follows: stop waiting."""
        if part is self._awaited:
            return
        self._awaited = part
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        if part in (h11.IDLE, h11.SEND_BODY):
            self._arrival = self.loop.call_later(self.limit + _MARGIN, self.transport.abort)
