"""The catalogue: which models have a name, and where their bytes come from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from slipstream.errors import UnknownName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class PipSource:
    """Python packages that each hold one part of the file, in joining order; `wheel_bytes` is the largest wheel."""

    packages: tuple[str, ...]
    wheel_bytes: int

    def __str__(self) -> str:
        more = f" and {len(self.packages) - 1} more" if len(self.packages) > 1 else ""
        return f"pip package {self.packages[0]}{more}"


@dataclass(frozen=True)
class HubSource:
    """One file of a repository on the Hugging Face hub."""

    repo: str
    file: str

    def __str__(self) -> str:
        return f"hf:{self.repo}/{self.file}"


Source = PipSource | HubSource


@dataclass(frozen=True)
class Entry:
    """One named model. `size` is in bytes; `drafts` are the catalogue names that suit it as draft models."""

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    description: str
    quantisation: str
    drafts: tuple[str, ...]
    sources: tuple[Source, ...]


Catalog = Mapping[str, Entry]


def parse(text: str) -> Catalog:
    """Catalogue entries from TOML; an unknown or missing key raises, for the file is part of the package."""
    return {name: _entry(name, **table) for name, table in tomllib.loads(text).items()}


def _entry(name: str, *, drafts: list[str], sources: list[dict[str, Any]], **fields: Any) -> Entry:
    return Entry(name=name, drafts=tuple(drafts), sources=tuple(_source(**source) for source in sources), **fields)


def _source(kind: str, **fields: Any) -> Source:
    if kind == "pip":
        return PipSource(packages=tuple(fields.pop("packages")), **fields)
    if kind == "hf":
        return HubSource(**fields)
    raise ValueError(f"unknown source kind: {kind}")


@cache
def builtin() -> Catalog:
    """The catalogue that ships with Slipstream."""
    return parse(files("slipstream.hub").joinpath("catalog.toml").read_text(encoding="utf-8"))


def lookup(name: str, catalog: Catalog) -> Entry:
    """The entry called `name`. Raises UnknownName, which lists the nearest ones."""
    if name not in catalog:
        raise UnknownName("model", name, catalog, extra="(`slipstream models` lists them)")
    return catalog[name]
