"""What is wrong with a JSON schema before it is compiled: keywords that would be passed over, numbers too large to try.

The compiler names the keywords that it cannot do; those checked here are the ones that it would ignore without a word.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from slipstream.errors import InputError

_MOST_MULTIPLES = 20_000  # compiling takes time that grows with it: 0.1 s here, minutes for a number of eight digits
_LIST, _MAP = ("allOf", "anyOf", "oneOf", "prefixItems", "items"), ("properties", "patternProperties", "$defs")
_ONE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_ASSERTIONS = (
    *_LIST,
    *_MAP,
    *_ONE,
    *("type", "enum", "const", "required", "pattern", "format", "minimum", "maximum", "multipleOf", "definitions"),
    *("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties"),
    *("maxProperties", "uniqueItems", "minContains", "maxContains", "dependentRequired", "dependentSchemas"),
)
_OTHERS = {  # they would narrow or widen what may be said, but belong to older drafts or to OpenAPI
    "nullable": 'write "type": ["string", "null"] or the like',
    "extends": "use allOf",
    "disallow": "leave it out",
    "x-guidance": "leave it out",
    "divisibleBy": "use multipleOf",
}


def check(schema: Any, strict: bool = True) -> None:
    """Raises InputError for a schema that would take minutes to compile; `strict`: and for an ignored keyword."""
    total = 1
    for part in subschemas(schema):
        if strict:
            _check_keywords(part)
        total = math.lcm(total, _numerator(part.get("multipleOf", 1)))
        if total > _MOST_MULTIPLES:
            raise InputError(
                f"multipleOf is {part['multipleOf']}: all multiples of a schema together may reach {_MOST_MULTIPLES}",
                "leave multipleOf out, and check the number afterwards",
            )


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all that it is made of. Raises InputError where it is nested too deep to be read."""
    todo = [(schema, 0)]
    while todo:
        part, depth = todo.pop()
        if not isinstance(part, Mapping):
            continue
        if depth > 100:
            raise InputError("the schema is nested more than 100 levels deep", "flatten it, or use $ref")
        yield part
        below: list[Any] = [part[key] for key in _ONE if key in part]
        below += [sub for key in _LIST if isinstance(part.get(key), Sequence) for sub in part[key]]
        below += [s for k in (*_MAP, "definitions") if isinstance(part.get(k), Mapping) for s in part[k].values()]
        todo += [(sub, depth + 1) for sub in below]


def _check_keywords(part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if not isinstance(key, str):
            raise InputError(f"a keyword of the schema is {key!r}", "keywords are texts")
        if key in _OTHERS and value is not False:
            raise InputError(f"the schema's keyword {key} is not supported", _OTHERS[key])
        if key not in _ASSERTIONS and (near := difflib.get_close_matches(key, _ASSERTIONS, n=1, cutoff=0.87)):
            raise InputError(f"the schema has a keyword {key}, which means nothing", f"did you mean {near[0]}?")


def _numerator(multiple: Any) -> int:
    """Of a multipleOf, as a whole number of its last decimal place: what compiling it costs grows with that."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not math.isfinite(multiple):
        return 1  # the compiler says what is wrong with it
    _, digits, _ = Decimal(repr(multiple)).normalize().as_tuple()
    return max(int("".join(map(str, digits))), 1)
