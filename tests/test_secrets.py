"""What looks like a secret is masked; what does not is left as it is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.advise.secrets import MASK, mask, masked

SECRETS = [
    "sk-proj-Ab12Cd34Ef56Gh78",
    "ghp_0123456789abcdefABCDEF",
    "AKIA1234567890ABCDEF",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "Bearer abcdef.0123456789",
    "password = hunter2",
    'api_key: "q1w2e3r4t5"',
    '"secret": "tell-nobody"',
    "ann@example.org",
    "4111 1111 1111 1111",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIB\nabc\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_masked(secret: str) -> None:
    text = f"before {secret} behind"
    found = mask(text)
    assert MASK in found and found.startswith("before ") and found.endswith(" behind")
    value = secret.split()[-1].strip('"')
    assert value not in found or value in ("1111", "KEY-----")
    assert "MIIB" not in found and "hunter2" not in found


def test_credentials_in_an_address_are_masked() -> None:
    assert "pa55" not in mask("postgres://bob:pa55@localhost/db")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('SECRET_KEY = "django-insecure-x$%3&*abc"', "insecure"),
        ("DB_PASSWORD_PROD=hunter2", "hunter2"),
        ("MYSQL_PWD=hunter2", "hunter2"),
        ("pwd=hunter22", "hunter22"),
        ("AWS_SECRET_ACCESS_KEY=abcd/efgh+ijkl", "efgh"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNl"),
        ('token => "abc123"', "abc123"),
        ("password='p,ss;word'", "ss;word"),
        ("<password>hunter2</password>", "hunter2"),
        ("密码：hunter2", "hunter2"),
        ('"password": "correct horse battery staple"', "staple"),
        ("postgres://user:p@ss@host/db", "ss@host"),
        ('PASSWORD: str = "hunter2"', "hunter2"),
        ("my password is hunter2", "hunter2"),
    ],
)
def test_secrets_in_their_usual_places(text: str, secret: str) -> None:
    assert secret not in mask(f"a line before\n{text}\na line behind")
    assert mask(f"a line before\n{text}\na line behind").endswith("\na line behind")


@pytest.mark.parametrize(
    "text",
    [
        "def token_bucket(rate, per): return rate / per",
        "The quick brown fox jumps over the lazy dog 12 times in 2024.",
        "for i in range(1000000): total += values[i]",
        "def add_all(numbers):\n    return sum(numbers)",
        "The secret of the garden was a door.",
        "你好，今天天气不错。",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert mask(text) == text


@given(st.data())
def test_a_secret_may_go_over_parts(data: st.DataObject) -> None:
    text = "the key is " + SECRETS[0] + " and the mail ann@example.org, done"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8)))
    ends = [0, *cuts, len(text)]
    parts = [(text[a:b], f"origin {i}") for i, (a, b) in enumerate(itertools.pairwise(ends))]
    found = masked(parts)
    assert "".join(part for part, _ in found) == mask(text)
    # What is left of a part is where it was, with its origin.
    for part, origin in found:
        own = {o: p for p, o in parts}[origin]
        assert part.replace(MASK, "") == "" or all(piece in own for piece in part.split(MASK))
