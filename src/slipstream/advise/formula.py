"""Arithmetic in one variable, n, as a person writes it: numbers, + - * / and parentheses, max, min, ceil, floor."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable

from slipstream.errors import InputError

HINT = "write arithmetic in n, such as 40 + 2*n or 30 + 12*ceil(n/4); max, min, ceil and floor are known"
LONGEST = 200  # characters
_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "ceil": math.ceil, "floor": math.floor}


def parse(text: str) -> Callable[[int], float]:
    """The function that `text` describes. Raises InputError for anything that is not such arithmetic.

    The function raises InputError where it has no value: a division by zero, an overflow.
    """
    if len(text) > LONGEST:
        raise InputError(f"the formula has {len(text)} characters; {LONGEST} are read", HINT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of text that is no good style of Python
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"not a formula: {text}", HINT) from None
    _check(tree, text)

    def formula(n: int) -> float:
        try:
            value = float(_value(tree, float(n)))
        except (ArithmeticError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{text} has no value at n = {n}", HINT)
        return value

    return formula


def _check(node: ast.expr, text: str) -> None:
    """Nothing is let through but what `_value` reads."""
    inner: list[ast.expr]
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            inner = []
        case ast.Name(id="n"):
            inner = []
        case ast.BinOp(left=left, right=right, op=op) if type(op) in _OPERATORS:
            inner = [left, right]
        case ast.UnaryOp(operand=operand, op=sign) if type(sign) in _OPERATORS:
            inner = [operand]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            if len(args) < 1 or (name in ("ceil", "floor") and len(args) > 1):
                raise InputError(f"{name} takes another number of values: {text}", HINT)
            inner = args
        case _:
            raise InputError(f"{ast.unparse(node)} is not allowed in a formula: {text}", HINT)
    for part in inner:
        _check(part, text)


def _value(node: ast.expr, n: float) -> float:
    match node:
        case ast.Constant(value=value):
            return float(value)  # type: ignore[arg-type]  # checked
        case ast.BinOp(left=left, right=right, op=op):
            return _OPERATORS[type(op)](_value(left, n), _value(right, n))
        case ast.UnaryOp(operand=operand, op=sign):
            return _OPERATORS[type(sign)](_value(operand, n))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_value(arg, n) for arg in args]
            return _FUNCTIONS[name](*values) if len(values) > 1 or name in ("ceil", "floor") else values[0]
        case _:
            return n
