"""Fixed examples for hypothesis, and models that many tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded model's file; fetched once into the cache folder."""
    from slipstream.hub import resolve

    return resolve("smollm2-135m")
