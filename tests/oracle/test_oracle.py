"""Every function and operator of the subset, asked of both sides."""

from __future__ import annotations

import pytest

from tests.oracle.oracle_compare import Oracle

RANGE_FUNCTIONS = [
    "rate",
    "irate",
    "increase",
    "delta",
    "idelta",
    "deriv",
    "changes",
    "resets",
    "avg_over_time",
    "min_over_time",
    "max_over_time",
    "sum_over_time",
    "count_over_time",
    "last_over_time",
    "stddev_over_time",
    "present_over_time",
]
RANGES = (
    "requests_total[1m]",
    "requests_total[5m]",
    "tokens_total[7m13s] offset 2m",
    "tokens_total[15s]",
    "running[5m] offset -1m",
    "gauge[4m]",
    'gauge{kind=~"plain|constant|gaps"}[1m]',
    "sparse[10m]",
    "sparse[1h]",
    "latency_seconds_bucket[2m]",
    '{__name__=~"twin_a|running"}[5m]',
    "requests_total[10m:1m]",
    "requests_total[10m:13s] offset 1m",
    "gauge[6m:]",
    "(running + waiting)[5m:45s]",
    "(running > 8)[5m:15s]",
    "(sparse offset 3m)[20m:1m]",
    "rate(tokens_total[2m])[10m:1m]",
    "sum by (model) (rate(tokens_total[2m]))[10m:1m] offset -2m",
)


@pytest.mark.parametrize("function", RANGE_FUNCTIONS)
def test_functions_of_ranges(oracle: Oracle, function: str) -> None:
    for selector in RANGES:
        oracle.check(f"{function}({selector})", slack=1e-10 if function == "deriv" else 1e-14)


@pytest.mark.parametrize("q", ["0", "0.5", "0.99", "1", "-1", "2", "NaN", "scalar(slots{engine='e0'}) / 10"])
def test_quantile_over_time(oracle: Oracle, q: str) -> None:
    for selector in RANGES:
        oracle.check(f"quantile_over_time({q}, {selector})")


@pytest.mark.parametrize("seconds", ["0", "60", "-3600", "scalar(running{engine='e0'})"])
def test_predict_linear(oracle: Oracle, seconds: str) -> None:
    for selector in RANGES:
        oracle.check(f"predict_linear({selector}, {seconds})", slack=1e-8)


VECTORS = (
    "running",
    "gauge",
    "sparse offset 4m",
    "gauge - 3",
    "sum by (engine) (running)",
    "rate(requests_total[2m])",
    'missing{a="b"}',
    '{__name__=~"twin_.*"}',
    "info",
    "vector(1.5)",
)


@pytest.mark.parametrize(
    "function", ["abs", "ceil", "floor", "sqrt", "exp", "ln", "log2", "log10", "round", "timestamp", "absent", "scalar"]
)
def test_functions_of_vectors(oracle: Oracle, function: str) -> None:
    for vector in VECTORS:
        oracle.check(f"{function}({vector})")


def test_functions_with_parameters(oracle: Oracle) -> None:
    limits = ("0", "3", "-2.5", "Inf", "-Inf", "NaN", "scalar(running{engine='e1'})")
    for vector in VECTORS:
        for a in limits:
            oracle.check(f"round({vector}, {a})")
            oracle.check(f"clamp_min({vector}, {a})")
            oracle.check(f"clamp_max({vector}, {a})")
            for b in ("5", "NaN", "-1"):
                oracle.check(f"clamp({vector}, {a}, {b})")


@pytest.mark.parametrize(
    "query",
    [
        "time()",
        "time() % 3600",
        "vector(time())",
        "vector(scalar(sum(running)))",
        "scalar(running{engine='e0'})",
        "scalar(running)",
        "scalar(vector(2)) + 1",
        "-time()",
        "-running",
        "- -gauge",
        "-{__name__=~'twin_.*'}",
        "timestamp(running)",
        "timestamp(running offset 1m)",
        "timestamp(-running)",
        "timestamp(timestamp(gauge))",
        "time() - timestamp(sparse)",
        "max_over_time(timestamp(running)[5m:30s])",
        "max_over_time(time()[5m:30s])",
        "absent(missing{a='b', c='d', c!='e', f=~'g'})",
        "absent(missing{a='b', a='c'})",
        "absent(missing{a='b'} > 1)",
        "absent(sum(missing))",
        "absent(running > 100)",
        "absent(running{engine='e3'})",
        "absent({__name__='missing', a='b'})",
        "sort(running)",
        "sort_desc(gauge)",
        "running offset 1h",
        "running offset -10m",
        "{__name__='running'}",
        "running{engine!~'e[01]'}",
        "running{engine=~'e0|e1', model!='m1'}",
        "running{nope=''}",
        "running{nope!=''}",
        "{engine='e0', le=''}",
        "1 == bool 1",
        "NaN == bool NaN",
        "2 ^ 3 ^ 2",
        "-2 ^ 2",
        "(-2) ^ 2",
        "7 % -3",
        "-7 % 3",
        "5 % 0",
        "1 / 0",
        "0 / 0",
        "-1 / 0",
        "Inf - Inf",
        "1 + 2 * 3 - 4 / 5",
        "1 > bool 2 == bool 0",
        "rate(running)",
        "running == ",
        "sum(running) by (engine",
        "nope(running)",
        "1 > 2",
        "{a=''}",
        "last_over_time({__name__=~'twin_.*'}[5m])",
        "rate({__name__=~'twin_.*'}[5m])",
        "rate({__name__=~'.*_total'}[5m])",
        "sum_over_time((requests_total or tokens_total)[5m:1m])",
    ],
)
def test_single_queries(oracle: Oracle, query: str) -> None:
    oracle.check(query)


OPERATORS = ["+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<="]


@pytest.mark.parametrize("op", OPERATORS)
def test_operators_with_a_scalar(oracle: Oracle, op: str) -> None:
    for bool_ in ("", "bool") if op in OPERATORS[6:] else ("",):
        for vector in ("running", "gauge", "sparse", "{__name__=~'twin_.*'}", "missing"):
            for number in ("0", "3", "-1.5", "NaN", "Inf", "scalar(running{engine='e2'})"):
                oracle.check(f"{vector} {op} {bool_} {number}")
                oracle.check(f"{number} {op} {bool_} {vector}")
        if bool_ or op in OPERATORS[:6]:
            oracle.check(f"3 {op} {bool_} 2")
            oracle.check(f"time() {op} {bool_} NaN")


PAIRS = (
    ("running", "", "waiting"),
    ("running", "on (engine)", "slots"),
    ("running", "on (engine, model)", "waiting"),
    ("running", "ignoring (model, pool)", "slots"),
    ("running", "on (model) group_left ()", "price"),
    ("running", "on (model) group_left (currency)", "price"),
    ("running", "on (engine) group_left (version, zone)", "info"),
    ("info", "on (engine) group_right (version)", "running"),
    ("price", "on (model) group_right (currency)", "running"),
    ("price", "ignoring (engine, pool, currency) group_right ()", "running"),
    ("running", "on (pool)", "waiting"),
    ("running", "on (model)", "price"),
    ("running", "on (model) group_right ()", "waiting"),
    ("running", "on (engine) group_left (model)", "slots"),
    ("running", "on (engine) group_left (__name__)", "slots"),
    ("running", "on (__name__, engine)", "running"),
    ("running", "on ()", "sum(running)"),
    ("sum(running)", "on () group_right ()", "running"),
    ("running", "", "missing"),
    ("missing", "", "running"),
    ("running", "", "running offset 1m"),
    ("latency_seconds_bucket", "ignoring (le) group_left ()", "latency_seconds_count"),
    ("rate(latency_seconds_bucket[2m])", "ignoring (le) group_left ()", "rate(latency_seconds_count[2m])"),
    ("{__name__=~'twin_.*'}", "", "twin_a"),
    ("twin_a", "", "{__name__=~'twin_.*'}"),
    ("{__name__=~'twin_.*'}", "ignoring (x) group_left ()", "slots"),
    ("gauge", "on (engine) group_left ()", "slots"),
    ("gauge", "", "gauge"),
    ("info", "on (engine)", "slots"),
    ("sparse", "on (kind)", "sparse offset 5m"),
    ("gauge > 0", "on (engine) group_left ()", "running > 4"),
    ("(gauge > 0)", "on (engine)", "(gauge < 0)"),
)


@pytest.mark.parametrize("op", [*OPERATORS, "and", "or", "unless"])
def test_operators_between_vectors(oracle: Oracle, op: str) -> None:
    for left, how, right in PAIRS:
        oracle.check(f"{left} {op} {how} {right}")
        if op in OPERATORS[6:]:
            oracle.check(f"{left} {op} bool {how} {right}")
    for left, how, right in PAIRS:
        if "group" not in how:
            oracle.check(f"({right}) {op} {how} ({left})")


GROUPINGS = ("", "by (engine)", "by (model)", "by (kind, le)", "without (engine)", "without ()", "by (__name__)")


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "count", "stddev", "group"])
def test_aggregations(oracle: Oracle, op: str) -> None:
    for grouping in GROUPINGS:
        for vector in (*VECTORS, "{engine=~'.+'}", "latency_seconds_bucket", "gauge{kind!~'wide'}"):
            oracle.check(f"{op} {grouping} ({vector})")


@pytest.mark.parametrize("parameter", ["1", "2", "0", "-1", "1.9", "100", "NaN", "Inf", "scalar(price{model='m1'})"])
def test_aggregations_with_a_parameter(oracle: Oracle, parameter: str) -> None:
    # Of a constant vector Prometheus 2.42 computes a varying parameter at the first step only.
    vectors = [v for v in VECTORS if v != "vector(1.5)" or "scalar" not in parameter]
    for grouping in GROUPINGS:
        for vector in vectors:
            oracle.check(f"quantile {grouping} ({parameter}, {vector})")
            oracle.check(f"topk {grouping} ({parameter}, {vector})", ties=True)
            oracle.check(f"bottomk {grouping} ({parameter}, {vector})", ties=True)


@pytest.mark.parametrize("q", ["0", "0.3", "0.5", "0.95", "1", "1.5"])
def test_quantile(oracle: Oracle, q: str) -> None:
    for grouping in GROUPINGS:
        for vector in VECTORS:
            oracle.check(f"quantile {grouping} ({q}, {vector})")


@pytest.mark.parametrize(
    "q", ["0", "0.01", "0.5", "0.9", "0.99", "1", "-0.5", "1.5", "NaN", "scalar(price{model='m0'})"]
)
def test_histogram_quantile(oracle: Oracle, q: str) -> None:
    for vector in (
        "latency_seconds_bucket",
        "rate(latency_seconds_bucket[2m])",
        "sum by (le) (rate(latency_seconds_bucket[2m]))",
        "sum by (le, model) (increase(latency_seconds_bucket[5m]))",
        "sum without (pool, model) (latency_seconds_bucket)",
        "odd_bucket",
        "rate(odd_bucket[3m])",
        "odd_bucket - 20",
        "{__name__=~'odd.*_bucket'}",
        "{__name__=~'odd.*_bucket', kind='no_inf'}",
        "sum by (le) (odd_bucket)",
        "running",
        "missing",
    ):
        oracle.check(f"histogram_quantile({q}, {vector})")


PATTERNS = (
    "e[12]", "e1|e2", "|e1", "e", "e.*", ".*1", ".+1.*", ".*", ".+", "", "(?i)E1", "(?i:E)[12]", "E1", r"\\pL\\pN",
    r"\\p{Greek}+", "[[:alpha:]]1", r"\\Qe1\\E", r"\\Qe.\\E", r"\\w\\d", r"e\\x31", r"\\Ae1\\z", "^e1$", "(e)(1)?",
    "(e?){30}1",
    "(.?){40}x", "(.??){40}1", "(?P<b>.?){30}", "(x+)+y", "(((e*)*)*)*1", "e{1}1{,2}", "e{1,2}1", "(?s:e.)", "(?U)e.+",
    "e1|", r"e\\-1", r"e\\_1", "[^e]+", "e**", "(?=e)e1", r"(e)\\1", r"\\C1", r"e\\Z", "e{1001}",
    "((e{1,100}){1,100}){1,100}",
    "(?x)e 1", "[a&&e]1", "(", ")", "[", r"e\\", "(?>e)1", "e1++", "[[:word:]]+", r"\\N{e}", "(?P<n>e)(?P<n>1)",
)  # fmt: skip
"""What Prometheus takes is taken here and matches the same; what it refuses is refused here."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regular_expressions(oracle: Oracle, pattern: str) -> None:
    oracle.check(f'running{{engine=~"{pattern}"}}')
    oracle.check(f'running{{engine!~"{pattern}"}}')
    oracle.check(f'{{__name__="running",nope=~"{pattern}"}}')
    oracle.check(f'label_replace(running, "new", "$1-${{n}}-$01-$$-$0", "engine", "{pattern}")')


@pytest.mark.parametrize(
    "arguments",
    [
        '"x", "$1", "engine", "e(.*)"',
        '"engine", "$1-${1}-$2", "engine", "(e)(.*)"',
        '"x", "$1x", "engine", "(e)(.*)"',
        '"x", "${1}x$$", "engine", "(e)(.*)"',
        '"x", "$name", "engine", "(?P<name>e).*"',
        '"engine", "", "engine", "e0"',
        '"engine", "same", "engine", "e.*"',
        '"__name__", "other", "engine", "e0"',
        '"__name__", "", "engine", ".*"',
        '"x", "$", "engine", ".*"',
        '"x", "y", "missing", ""',
        '"x", "y", "missing", ".+"',
        '"x y", "y", "engine", ".+"',
        '"x", "y", "engine", "("',
        '"model", "é$0", "model", "m|m0"',
    ],
)
def test_label_replace(oracle: Oracle, arguments: str) -> None:
    for vector in ("running", "info", "gauge", "sum(running)", "missing", "{__name__=~'twin_.*'}"):
        oracle.check(f"label_replace({vector}, {arguments})")


@pytest.mark.parametrize(
    "arguments",
    [
        '"x", "-", "engine", "model"',
        '"x", "", "engine"',
        '"engine", ",", "nope"',
        '"x", "-"',
        '"model", "/", "model", "model", "nope"',
        '"__name__", "_", "__name__", "engine"',
        '"", "-", "engine"',
        '"x", "-", "not a label"',
    ],
)
def test_label_join(oracle: Oracle, arguments: str) -> None:
    for vector in ("running", "info", "sum(running)", "missing", "{__name__=~'twin_.*'}"):
        oracle.check(f"label_join({vector}, {arguments})")
