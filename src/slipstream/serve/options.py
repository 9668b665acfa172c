"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import InputError

MIB = 2**20


@dataclass(frozen=True)
class ServeOptions:
    """Raises InputError for values that make no sense."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0: any that is free
    aliases: tuple[str, ...] = ()  # further names that clients may give the model
    api_keys: tuple[str, ...] = ()  # none: no key is asked for
    cors_origins: tuple[str, ...] = ()  # web pages of these origins may ask; "*": all
    max_waiting: int = 64  # choices that may wait for a slot; more are refused with 429
    max_body: int = 8 * MIB  # bytes of a request's body
    max_tokens: int | None = None  # tokens of an answer at most; None: what the context holds
    body_seconds: float = 30.0  # for a request's body to arrive
    request_seconds: float = 3600.0  # a request that takes longer is ended
    stall_seconds: float = 300.0  # a step that takes longer is a hang
    drain_seconds: float = 30.0  # after SIGTERM, for requests to come to their end

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"the port is {self.port}", "it lies between 1 and 65535; 0 takes any that is free")
        for name in ("max_waiting", "drain_seconds"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}", "it must not be negative")
        for name in ("max_body", "body_seconds", "request_seconds", "stall_seconds"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} is {getattr(self, name)}", "it must be above 0")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}", "it must be at least 1")
        if any(not key for key in self.api_keys):
            raise InputError("an API key is empty", "leave it out to ask for none")
