"""Whether a draft model speaks the target's language: compared by what tokens say, not by how many rows there are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from operator import ne

from slipstream.errors import PairError
from slipstream.text.vocab import Vocab

HINT = "use a draft model of the same family, or a drafter that needs no model"


@dataclass(frozen=True)
class Pairing:
    """Ids below `n_shared` mean the same to both models; the drafter may use no other.

    The two paddings count each vocabulary's rows from `n_shared` on. `note` is empty when there is nothing to say.
    """

    n_shared: int
    padding_target: int
    padding_draft: int
    note: str


def pair(target: Vocab, draft: Vocab) -> Pairing:
    """Compares the two vocabularies token by token; takes some milliseconds for 150,000 tokens.

    Raises PairError where a token differs, naming the first, or where the target has tokens that the draft model
    could not read. A difference in padding, or in which ids end a turn, is only noted.
    """
    n_shared = min(target.n_real, draft.n_real)
    if n_shared == 0:
        raise PairError("a model without a vocabulary cannot be paired", HINT)
    pairs = map(ne, target.tokens[:n_shared], draft.tokens[:n_shared])
    differing = list(compress(range(n_shared), pairs))
    padded = [i for i in differing if target.is_padding(i) or draft.is_padding(i)]
    if len(differing) > len(padded):
        skip = set(padded)
        raise _mismatch(target, draft, [i for i in differing if i not in skip], n_shared)
    if target.n_real > len(draft):
        message = f"the target has {target.n_real:,} tokens, of which the draft model knows only {len(draft):,}"
        raise PairError(message + _tokenizers(target, draft), HINT)
    return Pairing(
        n_shared, len(target) - n_shared, len(draft) - n_shared, "; ".join(_notes(target, draft, n_shared, padded))
    )


def _mismatch(target: Vocab, draft: Vocab, ids: list[int], n_shared: int) -> PairError:
    first = ids[0]
    theirs = (repr(v.tokens[first].decode("utf-8", "backslashreplace")) for v in (target, draft))
    message = "target and draft model have different vocabularies: token {} is {} in the target, {} in the draft model"
    return PairError(
        f"{message.format(first, *theirs)}; {len(ids):,} of {n_shared:,} differ{_tokenizers(target, draft)}", HINT
    )


def _tokenizers(target: Vocab, draft: Vocab) -> str:
    a, b = ("/".join(filter(None, (v.model, v.pre))) for v in (target, draft))
    return f" (tokenizers: {a} and {b})" if a and b and a != b else ""


def _notes(target: Vocab, draft: Vocab, n_shared: int, padded: list[int]) -> list[str]:
    notes = []
    if len(target) != len(draft) or target.n_real != draft.n_real:
        notes.append(
            f"{n_shared:,} tokens are shared; padding makes {len(target):,} rows in the target and {len(draft):,} in "
            f"the draft model; no id from {n_shared} on is drafted"
        )
    if padded:
        notes.append(f"{len(padded)} ids, first {padded[0]}, are in use in one model and padding in the other")
    if target.eos_ids != draft.eos_ids:
        ends = (", ".join(map(str, sorted(v.eos_ids))) or "none" for v in (target, draft))
        message = "the ids that end a turn differ: {} in the target, {} in the draft model; the target's count"
        notes.append(message.format(*ends))
    different = _tokenizers(target, draft)
    if different:
        notes.append("the same tokens, but split differently" + different)
    return notes
