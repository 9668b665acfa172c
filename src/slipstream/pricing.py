"""Price lists on disk: what a forward costs is measured once for each model, build and setting, then read back."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.cost import Curve, measure
from slipstream.core.ports import Model
from slipstream.errors import InputError
from slipstream.hub import cache_dir
from slipstream.hub.cache import read_json, write_json

log = logging.getLogger("slipstream")
BUDGET_S = 5.0
BUSY = 0.1  # share of the processors that others may use meanwhile
DISTURBED = 1.3  # median over least of the times for one token
_EDGE = 1 << 20  # bytes at each end of a model file that its key is made of
FORMAT = 3


def key(path: Path, **settings: Any) -> str:
    """Of a model file (size and both ends) with these settings: build, threads, cache types, …"""
    digest = hashlib.sha256(json.dumps([FORMAT, path.stat().st_size, settings], sort_keys=True).encode())
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        file.seek(max(path.stat().st_size - _EDGE, 0))
        digest.update(file.read(_EDGE))
    return digest.hexdigest()[:24]


def saved(name: str) -> Curve | None:
    """The price list of this key, or None; a damaged one is as good as none."""
    value = read_json(_file(name))
    try:
        return Curve.of(value["curve"]) if isinstance(value, dict) else None
    except (InputError, KeyError):
        return None


def price_list(
    name: str,
    model: Model,
    about: dict[str, Any],
    fresh: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    last_row: bool = False,
) -> Curve:
    """Read it, or measure it (some seconds, in the model's empty slot 0) and keep it, if nothing disturbed it."""
    curve = None if fresh else saved(name)
    if curve is None:
        watch = Others()
        curve = measure(model, clock, BUDGET_S, last_row=last_row)
        if curve.spread > DISTURBED or watch.share() > BUSY:
            log.info("the price list is not kept: other programs used the machine while it was measured")
            return curve
        try:
            _file(name).parent.mkdir(parents=True, exist_ok=True)
            write_json(_file(name), {"format": FORMAT, **about, "date": str(date.today()), "curve": curve.as_dict()})
        except OSError as e:
            log.warning("the price list cannot be kept: %s", e)
    return curve


class Others:
    """The share of this machine's processor time that other programs took since it was made."""

    def __init__(self) -> None:
        self._start = self._times()

    @staticmethod
    def _times() -> tuple[float, float, float]:
        """Seconds that all processors were busy, that this process used, and in all."""
        every = psutil.cpu_times()
        idle = every.idle + getattr(every, "iowait", 0.0)
        own = psutil.Process().cpu_times()
        return sum(every) - idle, own.user + own.system, sum(every)

    def share(self) -> float:
        busy, own, total = (after - before for before, after in zip(self._start, self._times(), strict=True))
        return max(busy - own, 0.0) / total if total > 0 else 0.0


def _file(name: str) -> Path:
    return cache_dir() / "prices" / f"{name}.json"
