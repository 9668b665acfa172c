"""Other prices: what is written is what is meant, and the models of another machine keep to what must be so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.advise import formula, whatif
from slipstream.advise.whatif import apply, check, notes, parse, scaled
from slipstream.core.cost import GRID, Curve, break_even
from slipstream.errors import InputError, UnknownName
from virtual import CURVES, curve

HERE = CURVES["amx"]
DRAFT = curve((1, 8), (2, 9), (8, 14), (64, 80), past=0.002)


def changed(*texts: str, target: Curve = HERE, draft: Curve = DRAFT) -> tuple[Curve, Curve]:
    made, drafts = apply([parse(t) for t in texts], target, {"small": draft})
    return made, drafts["small"]


def ms(c: Curve, *sizes: int) -> list[float]:
    return [pytest.approx(1000 * c.at(n, c.context)) for n in sizes]


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any staircase, falling steps included."""
    sizes = sorted({1, *draw(st.lists(st.integers(2, 64), max_size=8))})
    seconds = draw(st.lists(st.floats(1e-4, 1.0), min_size=len(sizes), max_size=len(sizes)))
    past, token = draw(st.tuples(*[st.floats(0, 1e-5)] * 2))
    return Curve(tuple(sizes), tuple(seconds), 16, past, token)


@st.composite
def rising(draw: st.DrawFn) -> Curve:
    c = draw(curves())
    return Curve(c.sizes, tuple(sorted(c.seconds)), c.context, c.per_past, c.per_past_token)


FACTORS = st.floats(0.02, 50)
SOME = [1, 2, 3, 5, 8, 13, 40, 64, 100]
ANY = ["users=3", "bandwidth=0.3", "bandwidth=4", "compute=0.5", "compute=3", "T(n)=40+2*n", "D(1)=5,D(2)=7"]


# -- formulas and tables -------------------------------------------------------------------------------------------


def test_a_formula_gives_milliseconds_at_every_size() -> None:
    target, draft = changed("T(n) = 30 + 12*ceil(n/4)")
    assert draft is DRAFT
    assert [1000 * target.at(n, 16) for n in (1, 4, 5, 8, 16)] == ms(
        curve((1, 42), (4, 42), (5, 54), (8, 54), (16, 78)), 1, 4, 5, 8, 16
    )
    assert set(GRID) | set(HERE.sizes) == set(target.sizes), "a step between the measured sizes counts too"
    target, draft = changed("D(n)=max(3, min(-(2 - n), 6)) / 2 + floor(n/100)")
    assert target is HERE and [1000 * draft.at(n, 16) for n in (1, 4, 8, 64)] == pytest.approx([1.5, 1.5, 3, 3])


def test_what_context_adds_changes_as_the_price_of_one_token_does() -> None:
    target, _ = changed("T(n)=8.2+n*0")
    assert target.per_past == pytest.approx(HERE.per_past / 10)
    assert target.at(1, 1016) - target.at(1, 16) == pytest.approx(1000 * HERE.per_past / 10)


def test_a_table_is_straight_between_and_goes_on_along_its_last_line() -> None:
    target, _ = changed("T(1)=40, T(8)=90 ,T(4)=60")
    assert target.sizes == (1, 4, 8)
    assert [1000 * target.at(n, 16) for n in (1, 2, 4, 6, 8, 12)] == pytest.approx([40, 40 + 20 / 3, 60, 75, 90, 120])
    _, draft = changed("D(1)=5,D(2)=7")
    assert 1000 * draft.at(3, 16) == pytest.approx(9)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "n.real", "n**9", "[n][0]", "lambda: n", "abs(n)", "n if n else 1", "'n'",
        "True", "1j", "m", "2n", "", "max()", "ceil(n, 2)", "max(n, key=n)", "max(*[n])", "n, n", "n == 1", "(" * 150,
        "9" * 300, "n\0", "~n", "(n := 3)", "n @ n", "n // 2", "f'{n}'",
    ],
)  # fmt: skip
def test_nothing_but_arithmetic_is_read(text: str) -> None:
    with pytest.raises(InputError) as e:
        formula.parse(text)
    assert "40 + 2*n" in e.value.hint


@pytest.mark.parametrize("text", ["1/(n-3)", "1e308*10*n", "ceil(1e308*10)", "floor(1e308*10 - 1e308*10)"])
def test_a_formula_without_a_value_says_where(text: str) -> None:
    with pytest.raises(InputError, match="no value at n = 3"):
        formula.parse(text)(3)


@given(st.recursive(
    st.sampled_from(["n", "2", "0.5"]),
    lambda e: st.one_of(
        st.tuples(e, st.sampled_from("+-*/"), e).map("({0[0]} {0[1]} {0[2]})".format),
        st.tuples(st.sampled_from(["max", "min"]), e, e).map("{0[0]}({0[1]}, {0[2]})".format),
        st.tuples(st.sampled_from(["ceil", "floor"]), e).map("{0[0]}({0[1]})".format),
    ),
    max_leaves=6,
))  # fmt: skip
def test_a_formula_is_worth_what_it_is_in_python(text: str) -> None:
    if len(text) > formula.LONGEST:
        return
    names = {"max": max, "min": min, "ceil": math.ceil, "floor": math.floor}
    for n in (1, 7):
        try:
            value = eval(text, {"__builtins__": {}}, {"n": float(n), **names})
        except ZeroDivisionError:
            with pytest.raises(InputError):
                formula.parse(text)(n)
        else:
            assert formula.parse(text)(n) == pytest.approx(value)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("bandwith=0.5", "unknown what-if: bandwith", "did you mean bandwidth?"),
        ("t(n)=4", r"unknown what-if: t\(n\)", "T(n)"),
        ("gpu=yes", "unknown what-if: gpu", "users"),
        ("users=0", "users is 0", "users=8"),
        ("users=2.5", "users is 2.5", "users=8"),
        ("users=-1", "users is -1", "users=8"),
        ("bandwidth=0", "bandwidth is 0", "bandwidth=0.5"),
        ("bandwidth=nan", "bandwidth is nan", "bandwidth=0.5"),
        ("compute=fast", "compute is fast", "compute=2"),
        ("compute=1e9", "compute is 1e9", "compute=2"),
        ("users", "not a change", "users=8"),
        ("users=", "not a change", "T(n)"),
        ("", "nothing", "T(n)"),
        ("T(n)=40-n", r"T\(64\) = -24", "T(n)=40+2*n"),
        ("T(n)=0*n", r"T\(1\) = 0", "T(n)=40+2*n"),
        ("D(n)=n!", "not a formula", "D(n)=5+n"),
        ("T(2)=40,T(4)=60", r"a table has T\(1\)", "T(1)=40"),
        ("T(1)=40", "at least one more", "T(4)=60"),
        ("T(0)=1,T(1)=40", "a table has", "T(4)=60"),
        ("T(1)=40,T(99999)=60", "up to 4096", "T(4)=60"),
        ("T(1)=40,T(1)=50", r"second one of the same size: T\(1\)=50", "T(4)=60"),
        ("T(1)=40,D(4)=60", r"D\(4\)=60", "T(4)=60"),
        ("T(1)=40,T(4)=-3", r"T\(4\) = -3", "T(n)=40"),
        ("T(1)=40,T(4)=nan", r"T\(4\) = nan", "T(n)=40"),
        ("D(1)=a,D(4)=3", r"not a price.*D\(1\)=a", "D(1)=5"),
        ("prices=no-such.json", "cannot read no-such.json", "slipstream cost"),
    ],
)
def test_refusals_name_what_is_wrong_and_show_how(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as e:
        parse(text)
    assert hint in e.value.hint
    assert isinstance(e.value, UnknownName) == message.startswith("unknown")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"curve": {}}', '{"curve": {"sizes": [1]}}', "\ud83d"])
def test_a_file_that_holds_no_prices(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match="holds no price list") as e:
        parse(f"draft-prices={tmp_path / 'x.json'}")
    assert "slipstream cost -m DRAFT --save" in e.value.hint


def test_a_formula_that_fails_between_the_usual_sizes_fails_when_applied() -> None:
    change = parse("T(n)=1/(n-9)*(n-9)")
    with pytest.raises(InputError, match="no value at n = 9"):
        apply([change], curve((1, 5), (9, 9)), {})


def test_prices_of_draft_models_need_some() -> None:
    for text in ("D(n)=4+n", "D(1)=4,D(2)=5"):
        check([parse(text)], ["small"])
        with pytest.raises(InputError, match="no draft model"):
            check([parse("users=2"), parse(text)], [])
    check([parse("T(n)=40"), parse("bandwidth=2")], [])


# -- another machine's prices --------------------------------------------------------------------------------------


def saved(path: Path, c: Curve, **more: object) -> Path:
    path.write_text(json.dumps({"context": 200, "rows": [], "curve": c.as_dict(), **more}))
    return path


def test_saved_prices_scale_the_draft_models_unless_theirs_are_known(tmp_path: Path) -> None:
    big = saved(tmp_path / "gpu.json", CURVES["flat"], model="big.gguf")
    small = saved(tmp_path / "small.json", CURVES["small"])
    target, draft = changed(f"prices={big}")
    assert target == CURVES["flat"] and draft == scaled(DRAFT, 30 / 82)
    assert draft.per_past == pytest.approx(DRAFT.per_past * 30 / 82)
    (note,) = notes([parse(f"prices={big}")])
    assert "big.gguf in gpu.json" in note and "scaled by the same ratio" in note and str(tmp_path) not in note
    for texts in ((f"prices={big}", f"draft-prices={small}"), (f"draft-prices={small}", f"prices={big}")):
        assert changed(*texts) == (CURVES["flat"], CURVES["small"])
        assert not any("scaled" in n for n in notes([parse(t) for t in texts]))
    assert changed("D(1)=5,D(2)=7", f"prices={big}")[1].at(2, 16) == pytest.approx(0.007)
    assert changed(f"draft-prices={small}") == (HERE, CURVES["small"])


def test_what_cost_saves_can_be_read(tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.cli import cost

    monkeypatch.setattr(cost, "_curve", lambda *args: (CURVES["avx"], "m.gguf"))
    assert cost.command(str(smollm2), 200, 0, "f16", False, tmp_path / "p.json", False) == 0
    assert changed(f"prices={tmp_path / 'p.json'}")[0] == CURVES["avx"]


# -- users ---------------------------------------------------------------------------------------------------------


@given(curves(), st.integers(1, 20), st.sampled_from(SOME))
def test_users_pay_for_one_forward_over_the_tokens_of_all(c: Curve, users: int, n: int) -> None:
    made, draft = changed(f"users={users}", target=c, draft=c)
    own = c.at(users * n, 16) + (users - 1) * 16 * c.per_past
    assert made == draft and made.at(n, 16) == pytest.approx(own, rel=1e-6)
    more = (users * c.per_past + users * n * c.per_past_token) * 1000
    assert made.at(n, 1016) - made.at(n, 16) == pytest.approx(more, rel=1e-6, abs=1e-12)


def test_a_staircase_keeps_its_steps_between_users() -> None:
    made, _ = changed("users=4", target=curve((1, 10), (8, 10), (9, 20), (16, 20), (17, 30), (24, 30)))
    assert [round(1000 * made.at(n, 16)) for n in (1, 2, 3, 4, 5, 6)] == [10, 10, 20, 20, 30, 30]


# -- bandwidth and arithmetic --------------------------------------------------------------------------------------


def test_less_bandwidth_hides_computing() -> None:
    made, _ = changed("bandwidth=0.5")
    assert [1000 * made.at(n, 16) for n in (1, 2, 8, 12, 16)] == pytest.approx([164, 164, 164, 196, 208])
    assert made.per_past == 2 * HERE.per_past
    scarce, _ = changed("bandwidth=0.1")
    assert [1000 * scarce.at(n, 16) for n in (1, 16, 100)] == pytest.approx([820, 820, 820])
    assert scarce.at(300, 16) == pytest.approx(HERE.at(300, 16)) and HERE.at(300, 16) > 1, "computing counts again"


def test_more_bandwidth_stops_at_computing() -> None:
    target = curve((1, 100), (32, 100), (64, 200), (128, 400))  # 3.125 ms a token to compute
    fast, _ = changed("bandwidth=4", target=target)
    assert [1000 * fast.at(n, 16) for n in (1, 32, 64, 128)] == pytest.approx([25, 100, 200, 400])
    fast, _ = changed("bandwidth=100", target=target)
    assert 1000 * fast.at(1, 16) == pytest.approx(3.125)
    step, _ = changed("bandwidth=2")
    assert 1000 * (step.at(2, 16) - step.at(1, 16)) == pytest.approx(146 - 82), (
        "steps that reading does not explain stay"
    )


def test_more_arithmetic_stops_at_reading() -> None:
    target = curve((1, 100), (32, 100), (64, 200), (128, 400))
    made, _ = changed("compute=2", target=target)
    assert [1000 * made.at(n, 16) for n in (1, 32, 64, 128)] == pytest.approx([100, 100, 100, 200])
    slow, _ = changed("compute=0.5", target=target)
    assert [1000 * slow.at(n, 16) for n in (1, 32, 64, 128)] == pytest.approx([100, 200, 400, 800])
    step, _ = changed("compute=0.5")
    assert 1000 * (step.at(2, 16) - step.at(1, 16)) == pytest.approx(2 * (146 - 82)), "steps are computing, too"


@given(curves(), st.lists(st.sampled_from(ANY), min_size=1, max_size=4), st.sampled_from(SOME), st.integers(0, 4000))
def test_prices_stay_above_nothing(c: Curve, texts: list[str], n: int, context: int) -> None:
    for made in changed(*texts, target=c, draft=c):
        assert 0 < made.at(n, context) < math.inf


@given(curves())
def test_no_change_is_no_change(c: Curve) -> None:
    assert changed("users=1", "bandwidth=1", "compute=1.0", target=c, draft=c) == (c, c)


@given(curves(), FACTORS, FACTORS, st.sampled_from(SOME), st.sampled_from(["bandwidth", "compute"]))
def test_a_slower_part_never_makes_a_forward_cheaper(c: Curve, a: float, b: float, n: int, key: str) -> None:
    slow, fast = (changed(f"{key}={f!r}", target=c)[0] for f in sorted((a, b)))
    last = c.sizes[-1]
    for context in (16, 500):
        if n <= 2 * last:
            assert slow.at(n, context) >= fast.at(n, context) * (1 - 1e-9)


@given(rising(), FACTORS, FACTORS, st.sampled_from([2, 3, 5, 8, 13, 40]))
def test_break_even_falls_when_bandwidth_falls(c: Curve, a: float, b: float, at: int) -> None:
    slow, fast = (changed(f"bandwidth={f!r}", target=c)[0] for f in sorted((a, b)))
    n = min(c.sizes, key=lambda m: abs(m - at))
    if n == 1:
        return
    low, high = (break_even(n, m.at(n, 16) / m.at(1, 16) * (1 - 1e-12)) for m in (slow, fast))
    assert high is None or (low is not None and low <= high + 1e-6)


def test_notes_are_sentences() -> None:
    for text in ANY:
        (note,) = notes([parse(text)])
        assert not note[0].islower() and note.endswith(".") and "\n" not in note
    assert "T(3n)" in notes([parse("users=3")])[0] and "0.3 times" in notes([parse("bandwidth=0.3")])[0]
    assert whatif.EXAMPLES.keys() == {"T(n)", "D(n)", "prices", "draft-prices", "users", "bandwidth", "compute"}
    for example in whatif.EXAMPLES.values():
        text = example.partition("--what-if ")[2].split(" for ")[0].split(" (")[0].split(", ")[0].strip('"')
        if ".json" not in text:
            parse(text)
