"""What `slipstream doctor` says of rounding: found where it is, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from helpers import markov_table
from slipstream.cli.doctor import _rounding
from slipstream.core.types import Array, Span
from slipstream.models.llamacpp.noise import ROOM, noise
from slipstream.models.toy import ToyModel

N = 12
TABLE = markov_table(N)


class Rounding(ToyModel):
    """Rows move by 0.25 in a forward like this."""

    def __init__(self, kind: str) -> None:
        super().__init__(TABLE, N, ROOM, n_slots=2)
        self.kind = kind

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        tree = any(p != i - 1 for s in spans for i, p in enumerate(s.parents))
        kind = "beside" if len(spans) > 1 else "tree" if tree else "chain" if len(spans[0].want) > 1 else "alone"
        return [row + 0.25 * (kind == self.kind) for row in super().forward(spans)]


def test_a_model_whose_rows_are_exact_has_none() -> None:
    found = noise(ToyModel(TABLE, N, ROOM, n_slots=2))
    assert found == {"chain": 0.0, "tree": 0.0, "beside": 0.0}
    assert "bit for bit" in _rounding(found)


@pytest.mark.parametrize(
    ("kind", "said"), [("chain", "in a chain"), ("tree", "in a tree"), ("beside", "beside another request")]
)
def test_rounding_is_found_where_it_is(kind: str, said: str) -> None:
    found = noise(Rounding(kind))
    assert {name for name, most in found.items() if most} == {kind} and found[kind] == pytest.approx(0.25)
    assert f"{said} 0.25" in _rounding(found) and _rounding(found).count("none") == 2


def test_a_model_without_trees_is_asked_for_none() -> None:
    found = noise(ToyModel(TABLE, N, ROOM, n_slots=2, recurrent=True))
    assert found == {"chain": 0.0, "beside": 0.0}
