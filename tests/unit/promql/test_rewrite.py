"""Templates, definitions, and what a query reads."""

from __future__ import annotations

import pytest

from kvitals.series.promql import PromQLError, expand, inline, names, parse, selectors, shift

DEFINITIONS = {
    "kvitals:hit_rate": parse("rate(hits[5m]) / rate(queries[5m])"),
    "kvitals:age": parse("time() - timestamp(up)"),
    "kvitals:twice": parse("kvitals:hit_rate * 2"),
    "kvitals:limit": parse("5"),
    "kvitals:loop": parse("kvitals:pool + 1"),
    "kvitals:pool": parse("-kvitals:loop"),
}


def test_expand() -> None:
    values = {"window": "5m", "scope": 'engine="a"', "x_1": "$window"}
    assert expand("rate(m{$scope}[${window}]) > $x_1", values) == 'rate(m{engine="a"}[5m]) > $window'
    assert expand('label_replace(m, "a", "$1-${2}$$window", "b", "(.)$$")', values) == (
        'label_replace(m, "a", "$1-${2}$window", "b", "(.)$")'
    )
    with pytest.raises(PromQLError, match=r"no value for \$nope; known names: \$scope \$window \$x_1"):
        expand("m > $nope", values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("other > 1", "other > 1"),
        ("kvitals:hit_rate > 0.5", "rate(hits[5m]) / rate(queries[5m]) > 0.5"),
        ("1 - kvitals:hit_rate", "1 - rate(hits[5m]) / rate(queries[5m])"),
        ("2 * kvitals:hit_rate", "2 * (rate(hits[5m]) / rate(queries[5m]))"),
        ("kvitals:hit_rate{a=''}", "rate(hits[5m]) / rate(queries[5m])"),
        ("kvitals:hit_rate offset 1h", "rate(hits[5m] offset 1h) / rate(queries[5m] offset 1h)"),
        ("kvitals:age offset 1m", "time() - 60 - timestamp(up offset 1m)"),
        ("kvitals:twice", "rate(hits[5m]) / rate(queries[5m]) * 2"),
        (
            "avg_over_time(kvitals:hit_rate[1h] offset 5m)",
            "avg_over_time((rate(hits[5m]) / rate(queries[5m]))[1h:30s] offset 5m)",
        ),
        ("max_over_time(sum(kvitals:age)[1h:1m])", "max_over_time(sum(time() - timestamp(up))[1h:1m])"),
        ("sum(kvitals:limit)", "sum(vector(5))"),
        ("topk(scalar(kvitals:limit), m)", "topk(scalar(vector(5)), m)"),
    ],
)
def test_inline(text: str, expected: str) -> None:
    result = inline(parse(text), DEFINITIONS, step=30.0)
    assert str(result) == expected
    assert parse(str(result)) == result


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kvitals:hit_rate{engine='a'} > 1", "takes no matchers: kvitals:hit_rate"),
        ("rate(kvitals:hit_rate{engine='a'}[5m])", "takes no matchers"),
        ("kvitals:loop", "circle: kvitals:loop -> kvitals:pool -> kvitals:loop"),
    ],
)
def test_inline_refuses(text: str, says: str) -> None:
    with pytest.raises(PromQLError, match=says):
        inline(parse(text), DEFINITIONS)


def test_shift() -> None:
    def shifted(text: str) -> str:
        return str(shift(parse(text), 60.0))

    assert shifted("m offset 30s") == "m offset 1m30s"
    assert shifted("m offset -1m") == "m"
    assert shifted("rate(m[5m])") == "rate(m[5m] offset 1m)"
    assert shifted("max_over_time(sum(m)[1h:1m] offset 1h)") == "max_over_time(sum(m)[1h:1m] offset 1h1m)"
    assert shifted("timestamp(sum(m))") == "timestamp(sum(m offset 1m)) - 60"
    assert shifted("topk(scalar(n), -m) + 1") == "topk(scalar(n offset 1m), -m offset 1m) + 1"


def test_what_a_query_reads() -> None:
    expr = parse(
        "sum(rate(a{x='1'}[5m] offset 1m)) / on () b + max_over_time((a or {y='2'})[1h:1m] offset 10m) + vector(1)"
    )
    assert names(expr) == {"a", "b"}
    found = [(u.name, u.range, u.reach) for u in selectors(expr)]
    assert found == [("a", 300, 360), ("b", 0, 300), ("a", 0, 4500), ("", 0, 4500)]
    assert [str(m) for m in selectors(expr)[0].selector.matchers] == ['x="1"']
