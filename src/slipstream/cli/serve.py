"""`slipstream serve`: an OpenAI-compatible server on this machine."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.common import Downloads, say
from slipstream.cli.options import EngineOptions, grouped
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.engine import Engine
    from slipstream.opening import OpenOptions
    from slipstream.serve.options import ServeOptions

EPILOG = (
    "Example: slipstream serve -m smollm2-135m\n\n"
    "Example: slipstream serve --plan slipstream-plan.toml --parallel 2 --port 9000"
)
KEY = "SLIPSTREAM_API_KEY"
_NET, _LIMITS = "Network", "Limits"


@dataclass
class _Engine(EngineOptions):
    """An engine's options, which remember whether the drafters were named."""

    def complete(self, given: Set[str]) -> None:
        super().complete(given)
        self.drafters_named = "draft" in given


@dataclass
class Network:
    """Where a server listens, and who may ask."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.", rich_help_panel=_NET)] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", help="0: any that is free.", rich_help_panel=_NET)] = 8080
    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias", metavar="NAME", help="Another name for the model; may be repeated.", rich_help_panel=_NET
        ),
    ] = None  # fmt: skip
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", metavar="KEY", envvar=KEY, show_default=False, rich_help_panel=_NET,
            help="Ask clients for this key; may be repeated. Others on this machine can see a command line, "
            "so the environment is the better place.",
        ),
    ] = None  # fmt: skip
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin", metavar="URL", help="Let web pages of this origin ask; may be repeated.",
            rich_help_panel=_NET,
        ),
    ] = None  # fmt: skip


@dataclass
class Limits:
    """What a request may take."""

    queue: Annotated[
        int,
        typer.Option("--queue", metavar="N", help="Requests that may wait; more get a 429.", rich_help_panel=_LIMITS),
    ] = 64
    max_body: Annotated[
        int, typer.Option("--max-body", metavar="MIB", help="Largest body of a request.", rich_help_panel=_LIMITS)
    ] = 8
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", metavar="N", help="Most tokens of an answer.", show_default="as the context holds",
            rich_help_panel=_LIMITS,
        ),
    ] = None  # fmt: skip
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="S", help="A request that takes longer is ended.", rich_help_panel=_LIMITS),
    ] = 3600
    drain: Annotated[
        float,
        typer.Option(
            "--drain", metavar="S", help="On SIGTERM or Ctrl-C, time for requests to end.", rich_help_panel=_LIMITS
        ),
    ] = 30
    cache_ram: Annotated[
        int,
        typer.Option(
            "--cache-ram", metavar="MIB", help="Memory for conversations that have lost their slot.",
            rich_help_panel=_LIMITS,
        ),
    ] = 512  # fmt: skip


@grouped
def command(
    engine: _Engine = ...,  # type: ignore[assignment]
    network: Network = ...,  # type: ignore[assignment]
    limits: Limits = ...,  # type: ignore[assignment]
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Requests at once; each has the whole --ctx.")
    ] = 4,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every request.")] = False,
) -> int:
    """Serve a model to editors, chat clients and agents that speak OpenAI's API, with a page to try it at /.

    Ctrl-C or SIGTERM lets running requests end; a second one ends them at once.
    """
    if parallel < 1:
        raise InputError(f"--parallel is {parallel}", "give the number of requests to answer at once, 1 or more")
    options = _options(engine.model, network, limits)
    settings = engine.settings(n_slots=parallel, cache_ram=limits.cache_ram)
    if verbose:
        logging.getLogger("slipstream").setLevel(logging.INFO)
    for warning in warnings(options):
        say(f"warning: {warning}")
    return _serve(engine, settings, options, verbose)


def _options(model: str, network: Network, limits: Limits) -> ServeOptions:
    from slipstream.serve.options import MIB, ServeOptions

    names = [*(network.alias or ()), *([] if Path(model).exists() else [model])]
    return ServeOptions(
        host=network.host, port=network.port, aliases=tuple(names), api_keys=tuple(network.api_key or ()),
        cors_origins=tuple(network.cors_origin or ()), max_waiting=limits.queue, max_body=limits.max_body * MIB,
        max_tokens=limits.max_tokens, request_seconds=limits.timeout, drain_seconds=limits.drain,
    )  # fmt: skip


def _serve(engine: _Engine, settings: OpenOptions, options: ServeOptions, verbose: bool) -> int:
    from slipstream.drafting import Drafting
    from slipstream.engine import Engine
    from slipstream.serve.run import Server

    drafting = Drafting.of(engine.draft)
    draft = [*drafting.names, *([drafting.model] if drafting.model else [])]
    if (draft or settings.corpus) and "predicted" not in draft:
        draft.append("predicted")  # costs nothing until a request brings a prediction
    if (
        drafting.names
        and not drafting.model
        and engine.drafters_named
        and (settings.k == 0 or settings.policy == "off")
    ):
        say(f"warning: --draft {engine.draft} is given, but nothing will be drafted: --policy off, or --k 0")
    status: dict[str, Any] = {}

    def open_engine() -> Engine:
        with Downloads() as progress:
            memory = _memory(engine.model, draft, settings, progress)
            priced = settings.fixed_policy(bool(draft)) is None
            say(f"opening {engine.model} ({memory})" + "; the first time, forwards are timed for some seconds" * priced)
            opened = Engine.open(engine.model, draft, settings, progress=progress)
        status.update(opened.status, n_ctx=opened.model.caps.n_ctx, slots=opened.model.caps.n_slots)
        return opened

    def ready(url: str) -> None:
        for line in _greeting(url, status, bool(options.api_keys)):
            say(line)

    return Server(open_engine, options, ready, verbose).run()


def _memory(model: str, draft: Sequence[str], settings: OpenOptions, progress: Downloads) -> str:
    """What the models and the slots will take, by device. Raises what finding the files does."""
    from slipstream.models.memory import human
    from slipstream.opening import Files, memory_plan

    plan, _, _ = memory_plan(Files.find(model, draft, progress), settings)
    return ", ".join(f"{human(size)} of {device}" for device, size in plan.needed.items() if size)


def _greeting(url: str, status: dict[str, Any], key: bool) -> list[str]:
    drafting = f"drafting: {status['drafter']}, verified {status['verify']}"
    if status["lossy"]:
        drafting += ", which is lossy: not the model's own text"
    if not status["active"]:
        drafting = f"not drafting: {status['reason']}"
    auth = f' -H "Authorization: Bearer ${KEY}"' if key else ""
    ask = '{"messages": [{"role": "user", "content": "Tell me about rivers"}], "max_tokens": 64}'
    return [
        f"serving {status['target']} on {url} (slots: {status['slots']}, of {status['n_ctx']} tokens each)",
        drafting,
        f"try {url}/ in a browser, or:",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{auth} -d '{ask}'",
        "Ctrl-C ends it",
    ]


def warnings(options: ServeOptions) -> list[str]:
    """What is risky about who may reach the server."""
    found = []
    if not _is_loopback(options.host):
        if options.api_keys:
            found.append(f"{options.host} can be reached from other machines, and requests travel unencrypted")
        else:
            found.append(
                f"ANYONE who reaches {options.host} can use this server, as there is no API key: set {KEY}, "
                "or use --host 127.0.0.1"
            )
    if "*" in options.cors_origins:
        found.append("--cors-origin '*': every web page that is open in a browser here can use this server")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
