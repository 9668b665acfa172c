"""From what the user writes (a name, a path, hf:owner/repo/file.gguf) to a model file on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipstream.errors import ChecksumError, FetchError, InputError, UnknownName
from slipstream.hub import cache, tuned
from slipstream.hub.catalog import Catalog, Entry, builtin, lookup
from slipstream.hub.fetch import Progress, discard, fetch, hub_download, hub_facts, silent, space_needed


@dataclass(frozen=True)
class ModelInfo:
    """One line of the list of models. `size` is in bytes; `path` is where the file lies, or would lie."""

    name: str
    size: int
    licence: str
    description: str
    quantisation: str
    installed: bool
    path: Path
    drafts: tuple[str, ...]


def models(catalog: Catalog | None = None) -> list[ModelInfo]:
    """Every model that has a name: the catalogue's, then those made here. Looks at names and sizes of files only."""
    known, made = builtin() if catalog is None else catalog, tuned.every()
    listed = [
        ModelInfo(
            name=entry.name,
            size=entry.size,
            licence=entry.licence,
            description=entry.description,
            quantisation=entry.quantisation,
            installed=cache.looks_installed(entry),
            path=cache.model_path(entry),
            drafts=entry.drafts + tuple(m.name for m in made if m.facts.get("target") == entry.name),
        )
        for entry in known.values()
    ]
    return listed + [_made(m) for m in made]


def _made(m: tuned.Tuned) -> ModelInfo:
    facts = {key: str(m.facts.get(key, "?")) for key in ("licence", "draft", "target", "recipe", "quantisation")}
    about = f"made by tune-draft from {facts['draft']} for {facts['target']} ({facts['recipe']})"
    size = m.path.stat().st_size
    return ModelInfo(m.name, size, facts["licence"], about, facts["quantisation"], True, m.path, ())


def pull(name: str, progress: Progress | None = None, catalog: Catalog | None = None) -> Path:
    """The checked file of a catalogue model, fetched when it is not here yet.

    An interrupted pull goes on after its last complete part. Raises UnknownName, DiskShortage, ChecksumError,
    FetchError (every source failed), or ResourceError (the cache folder cannot be used).
    """
    entry = lookup(name, builtin() if catalog is None else catalog)
    path = cache.model_path(entry)
    report = progress or silent
    with cache.readable_errors(entry):
        if not cache.is_verified(entry):
            path.parent.mkdir(parents=True, exist_ok=True)
            wait = partial(report, 0, entry.size, "waiting for another pull of this model")
            with cache.locked(cache.beside(path, ".lock"), wait):
                if not cache.is_verified(entry):  # the other process may have pulled it meanwhile
                    _fetch_into_place(entry, path, report)
    return path


def _fetch_into_place(entry: Entry, path: Path, progress: Progress) -> None:
    unfinished = cache.beside(path, ".partial")
    failures: list[FetchError | ChecksumError] = []
    for source in entry.sources:
        cache.require_space(path.parent, space_needed(entry, source, unfinished))
        try:
            fetch(entry, source, unfinished, progress)
        except (FetchError, ChecksumError) as error:
            failures.append(error)
            continue
        os.replace(unfinished, path)
        cache.record_verified(path, entry.sha256)
        discard(unfinished)
        return
    raise _all_failed(entry, failures)


def _all_failed(entry: Entry, failures: list[FetchError | ChecksumError]) -> FetchError | ChecksumError:
    # Wrong bytes say more than an unreachable source does.
    kind = ChecksumError if any(isinstance(failure, ChecksumError) for failure in failures) else FetchError
    reasons = "\n".join(f"  {s}: {failure.message}" for s, failure in zip(entry.sources, failures, strict=False))
    hints = list(dict.fromkeys(failure.hint for failure in failures if failure.hint))
    if kind is FetchError:
        hints.append("the same command goes on where this one stopped")
    return kind(f"{entry.name} could not be had from any of its sources\n{reasons}", "; ".join(hints))


def resolve(ref: str, fetch: bool = True, progress: Progress | None = None, catalog: Catalog | None = None) -> Path:
    """The file that `ref` means: a name of the catalogue, of a model made here, a path, or hf:owner/repo/file.gguf.

    With `fetch` off nothing is downloaded. Raises InputError (no such file, malformed hf: reference, or not here
    with `fetch` off), UnknownName, and what `pull` raises.
    """
    known = builtin() if catalog is None else catalog
    if ref.startswith("hf:"):
        return _from_hub(ref, fetch, progress or silent)
    if ref not in known:
        if made := tuned.find(ref):
            return tuned.checked(made)
        path = os.path.expanduser(ref)
        if os.path.isfile(path):
            return Path(path)
        if ref.lower().endswith(".gguf") or "/" in ref or os.sep in ref:
            what = "a folder, not a model file" if os.path.isdir(path) else "no such file"
            hint = "give a GGUF file, hf:owner/repo/file.gguf, or a name that `slipstream models` lists"
            raise InputError(f"{what}: {ref}", hint)
        names = [*known, *(m.name for m in tuned.every())]
        raise UnknownName("model", ref, names, extra="(`slipstream models` lists them)")
    if not fetch:
        with cache.readable_errors(known[ref]):
            if not cache.is_verified(known[ref]):
                raise InputError(f"{ref} has not been fetched yet", "pull it first; see `slipstream models`")
    return pull(ref, progress, known)


def _from_hub(ref: str, fetch: bool, progress: Progress) -> Path:
    """A file of the hub in the cache folder; the hub names its size and, for large files, its checksum beforehand."""
    parts = ref.removeprefix("hf:").split("/", 2)
    if len(parts) < 3 or not all(parts):
        raise InputError(f"not a file on the hub: {ref}", "write hf:owner/repo/file.gguf")
    owner, repo, file = parts
    folder = cache.cache_dir() / "hub" / owner / repo
    path = folder / file
    if cache.was_verified(path):
        return path
    if not fetch:
        raise InputError(f"{ref} has not been fetched yet", "`slipstream pull` fetches it")
    size, sha256 = hub_facts(f"{owner}/{repo}", file)
    folder.mkdir(parents=True, exist_ok=True)
    cache.require_space(folder, size)
    progress(0, size, f"fetching {ref}")
    path = hub_download(f"{owner}/{repo}", file, folder)
    found = cache.sha256_of(path)
    if sha256 and found != sha256:
        path.unlink()
        raise ChecksumError(f"{file} has sha256 {found}, but the hub says {sha256}", "fetch it again")
    cache.record_verified(path, found)
    return path
