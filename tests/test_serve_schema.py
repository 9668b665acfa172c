"""The server keeps to its own OpenAPI document, whatever is generated from it: right requests and wrong ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from toy_server import Child

LEAST, LIMIT = 2000, 30.0
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = {"/v1/chat/completions": 620, "/v1/completions": 420}  # of each mode; other operations: 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Child]:
    with Child(tmp_path / "log", max_tokens=8, request_seconds=20) as child:
        yield child
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log and "ERROR" not in log, log[-3000:]


def run(operation: Any, mode: GenerationMode, session: requests.Session, seen: Counter[int]) -> None:
    """Generate requests of one kind for an operation; each answer must be one that the document promises."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES.get(operation.path, 40),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Case) -> None:
        response = case.call(session=session, timeout=LIMIT)
        seen[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    ask()


def test_two_thousand_generated_requests_are_answered_as_the_schema_says(server: Child) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen: Counter[int] = Counter()
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = result.ok()
            for mode in GenerationMode:
                if mode is GenerationMode.POSITIVE or operation.body:
                    run(operation, mode, session, seen)
    assert sum(seen.values()) >= LEAST, seen
    assert not [s for s in seen if s >= 500]
    assert seen[200] > 100 and seen[400] > 500, seen  # both kinds were reached
    health = httpx.get(f"{server.url}/health").json()
    assert (health["status"], health["active"], health["waiting"]) == ("ok", 0, 0)
