"""The routes, and nothing else: each reads its request, asks the service, and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastapi import APIRouter, FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from slipstream import __version__
from slipstream.aio import AsyncEngine
from slipstream.serve import documents as docs
from slipstream.serve import failures, prepare
from slipstream.serve.answers import CHAT, TEXT, Kind, whole
from slipstream.serve.documents import answers
from slipstream.serve.failures import answer
from slipstream.serve.guard import Guard
from slipstream.serve.hangup import unless_gone
from slipstream.serve.options import ServeOptions
from slipstream.serve.prepare import Plan
from slipstream.serve.schema import ChatRequest, CompletionRequest, DetokenizeRequest, Generate, TokenizeRequest
from slipstream.serve.service import Service
from slipstream.serve.stream import begun
from slipstream.worker import State

B = TypeVar("B", bound=Generate)
Prepare = Callable[[Service, B], Awaitable[Plan]]
STATIC = Path(__file__).with_name("static")
FRESH = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}  # never scripts of two versions at once
_GENERATE = (400, 401, 404, 408, 413, 415, 429, 503, 504)
_ASK = (400, 401, 408, 413, 415, 503)


class Static(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(FRESH)
        return response


class Counters(Protocol):
    def render(self, engine_state: State, /) -> tuple[bytes, str]:
        """The metrics' text, and its content type."""
        ...


def create_app(engine: AsyncEngine, options: ServeOptions, metrics: Counters | None = None) -> FastAPI:
    """The server for an engine. Without `metrics` there is no /metrics."""
    service = Service(engine, options)
    app = FastAPI(
        title="Slipstream", version=__version__, docs_url=None, redoc_url=None, lifespan=lambda app: service.alive()
    )
    failures.install(app)
    app.add_middleware(Guard, options=options)
    if options.cors_origins:  # outside the guard: a browser asks for leave without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    router = openai_routes(service)
    app.include_router(router, prefix="/v1")
    app.include_router(router, include_in_schema=False)
    app.include_router(own_routes(service, metrics))
    app.mount("/static", Static(directory=STATIC))
    return app


def openai_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/chat/completions", responses=answers(docs.ChatAnswer, *_GENERATE, streams=True))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation."""
        return await unless_gone(_generate(service, prepare.chat, body, CHAT), request.receive)

    @router.post("/completions", responses=answers(docs.TextAnswer, *_GENERATE, streams=True))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, or fill a gap in one."""
        return await unless_gone(_generate(service, prepare.completion, body, TEXT), request.receive)

    @router.get("/models", responses=answers(docs.ModelList, 401, 503))
    async def models() -> Response:
        return answer(200, await service.models())

    @router.get("/models/{model_id:path}", responses=answers(docs.ModelCard, 401, 404, 503))
    async def model(model_id: str) -> Response:
        return answer(200, await service.model(model_id))

    return router


async def _generate(service: Service, prepared: Prepare[B], body: B, kind: Kind) -> Response:
    plan = await prepared(service, body)
    if body.stream:
        return await begun(service, plan, kind)
    return answer(200, await whole(service, plan, kind))


def own_routes(service: Service, metrics: Counters | None) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", responses=answers(docs.Tokens, *_ASK))
    async def tokenize(body: TokenizeRequest) -> Response:
        ids = await service.encode(body.content, body.add_special, body.parse_special)
        return answer(200, {"tokens": await service.with_pieces(ids) if body.with_pieces else ids})

    @router.post("/detokenize", responses=answers(docs.Content, *_ASK))
    async def detokenize(body: DetokenizeRequest) -> Response:
        await service.check_ids(body.tokens, "tokens")
        return answer(200, {"content": await service.text(body.tokens)})

    @router.get("/health", responses=answers(docs.Health, ill=True))
    async def health() -> Response:
        """Whether the models' thread is well; needs no key."""
        return answer(*service.health())

    @router.get("/props", responses=answers(docs.Props, 401, 503))
    async def props() -> Response:
        """What is served, whether it is drafted for and why not, and the price of each step."""
        return answer(200, await service.props())

    if metrics is not None:

        @router.get("/metrics", response_class=Response, responses=_METRICS)
        async def prometheus() -> Response:
            content, kind = metrics.render(service.engine.state)
            return Response(content, media_type=kind)

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(
            STATIC / "index.html", headers={**FRESH, "Content-Security-Policy": "frame-ancestors 'none'"}
        )

    return router


_METRICS = {
    **answers(None, 401),
    200: {"description": "Counters for Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}},
}
