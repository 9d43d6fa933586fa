"""Expressions drawn at random from the whole subset, over the names of `oracle_data`.

A comparison, a rounding or a search for counter resets turns a difference in the last bit into another answer.
So a drawn expression knows whether its values must be *exact*: made only of what is computed without rounding
(sums, products and extremes of eighths), which both sides agree on to the bit. What cuts or compares asks for
exact operands; what is smooth takes anything.
"""

from __future__ import annotations

from hypothesis import strategies as st

NUMBERS = st.sampled_from(["0", "1", "2", "0.5", "-3", "8", "100", "Inf", "-Inf", "NaN"])
PLAIN_NUMBERS = st.sampled_from(["1", "2", "0.5", "-3", "8"])
OFFSETS = st.sampled_from(["", "", "", " offset 1m", " offset 7m", " offset -90s"])
LENGTHS = st.sampled_from(["15s", "1m", "2m", "4m", "5m", "10m", "33m"])
# A subquery's range is not below its step: of one that hits no step Prometheus 2.42 still evaluates parts,
# with errors, and sometimes panics; for us it is empty.
SUBQUERY_LENGTHS = st.sampled_from(["5m", "7m", "10m", "33m"])
STEPS = st.sampled_from(["30s", "1m", "77s", "5m", ""])
QUANTILES = st.sampled_from(["0", "0.25", "0.5", "0.9", "1", "1.5", "NaN"])
SELECTORS = st.sampled_from(
    [
        *["running", "waiting", "requests_total", "tokens_total"] * 4,
        "slots",
        "price",
        "info",
        "sparse",
        "twin_a",
        "missing",
        'running{model="m0"}',
        'waiting{engine=~"e[12]"}',
        'gauge{kind="plain"}',
        'gauge{kind=~"gaps|constant|nan|inf"}',
        'gauge{kind!~"wide|mixed"}',
        '{__name__=~"twin_.*"}',
        '{engine="e1",le=""}',
        '{__name__=~"running|waiting",engine!="e0"}',
        "latency_seconds_count",
        'latency_seconds_bucket{le="+Inf"}',
    ]
)
BUCKETS = st.sampled_from(
    ["latency_seconds_bucket", 'latency_seconds_bucket{engine!="e2"}', "odd_bucket", 'odd_bucket{kind!="nan"}']
)
LABELS = st.lists(
    st.sampled_from([*["engine", "model"] * 4, "kind", "pool", "version", "le", "__name__", "nope"]),
    max_size=3,
    unique=True,
)

_EXACT_OVER = [
    "min_over_time",
    "max_over_time",
    "sum_over_time",
    "count_over_time",
    "last_over_time",
    "present_over_time",
]
_CUTTING_OVER = ["changes", "resets", "idelta"]  # exact from exact
_SMOOTH_OVER = ["avg_over_time", "stddev_over_time", "delta", "deriv"]
_COUNTER_OVER = ["rate", "increase", "irate"]  # they look for resets


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, bool]:
    """A query, and whether its labels hang on how ties are broken."""
    kind = draw(st.sampled_from(["vector"] * 8 + ["scalar", "topk"]))
    depth = int(draw(st.sampled_from("1223334")))
    if kind == "scalar":
        return _scalar(draw, depth, exact=False), False
    if kind == "topk":
        op = draw(st.sampled_from(["topk", "bottomk"]))
        count = draw(st.sampled_from(["1", "2", "5", "0"]))
        return f"{op}{_grouping(draw)} ({count}, {_vector(draw, depth, exact=True)})", True
    return _vector(draw, depth, exact=False), False


def _vector(draw: st.DrawFn, depth: int, *, exact: bool) -> str:
    if depth <= 0:
        return draw(SELECTORS) + draw(OFFSETS)
    makers = [_over_range, _over_range, _aggregate, _with_scalar, _with_vector, _with_vector, _set, _function]
    if not exact:
        makers += [_histogram, _inexact_function, _inexact_over_range, _inexact_over_range, _inexact_aggregate]
    choice = draw(st.sampled_from([str(i) for i in range(len(makers))]))
    return makers[int(choice)](draw, depth - 1, exact)


def _scalar(draw: st.DrawFn, depth: int, *, exact: bool) -> str:
    kind = draw(st.sampled_from(["number", "number", "vector", "binary"] + ([] if exact else ["time"])))
    if depth <= 0 or kind == "number":
        return draw(NUMBERS)
    if kind == "time":
        return "time()"
    if kind == "vector":
        return f"scalar({_vector(draw, depth - 1, exact=exact)})"
    left, right = _scalar(draw, depth - 1, exact=exact), _scalar(draw, depth - 1, exact=exact)
    return f"({left} {draw(st.sampled_from(['+', '-', '*']))} {right})"


def _range(draw: st.DrawFn, depth: int, *, exact: bool) -> str:
    if depth <= 0 or draw(st.sampled_from(["selector", "subquery"])) == "selector":
        return f"{draw(SELECTORS)}[{draw(LENGTHS)}]{draw(OFFSETS)}"
    return f"({_vector(draw, depth, exact=exact)})[{draw(SUBQUERY_LENGTHS)}:{draw(STEPS)}]{draw(OFFSETS)}"


def _over_range(draw: st.DrawFn, depth: int, exact: bool) -> str:
    function = draw(st.sampled_from(_EXACT_OVER + _CUTTING_OVER))
    return f"{function}({_range(draw, depth, exact=True)})"


def _inexact_over_range(draw: st.DrawFn, depth: int, exact: bool) -> str:
    function = draw(st.sampled_from([*_SMOOTH_OVER, *_COUNTER_OVER, "quantile_over_time", "predict_linear"]))
    # Regressions get no times either: of numbers as large as those Prometheus loses half of the digits.
    range_ = _range(draw, depth, exact=function in (*_COUNTER_OVER, "deriv", "predict_linear"))
    if function == "quantile_over_time":
        return f"quantile_over_time({draw(QUANTILES)}, {range_})"
    if function == "predict_linear":
        return f"predict_linear({range_}, {draw(PLAIN_NUMBERS)})"
    return f"{function}({range_})"


def _grouping(draw: st.DrawFn) -> str:
    words = ", ".join(draw(LABELS))
    return draw(st.sampled_from(["", f" by ({words}) ", f" without ({words}) "]))


def _aggregate(draw: st.DrawFn, depth: int, exact: bool) -> str:
    op = draw(st.sampled_from(["sum", "min", "max", "count", "group"]))
    return f"{op}{_grouping(draw)}({_vector(draw, depth, exact=exact)})"


def _inexact_aggregate(draw: st.DrawFn, depth: int, exact: bool) -> str:
    op = draw(st.sampled_from(["avg", "stddev", "quantile"]))
    parameter = f"{draw(QUANTILES)}, " if op == "quantile" else ""
    return f"{op}{_grouping(draw)}({parameter}{_vector(draw, depth, exact=False)})"


def _operator(draw: st.DrawFn, exact: bool) -> tuple[str, bool]:
    """An operator, and whether it needs exact operands."""
    smooth = ["+", "-", "*"]
    cutting = ["==", "!=", ">", "<", ">=", "<=", "> bool", "== bool", "<= bool", "%"]
    op = draw(st.sampled_from(smooth + cutting + ([] if exact else ["/", "^"])))
    return op, exact or op not in smooth


def _with_scalar(draw: st.DrawFn, depth: int, exact: bool) -> str:
    op, operands = _operator(draw, exact)
    vector, scalar = _vector(draw, depth, exact=operands), _scalar(draw, depth, exact=operands)
    swap = draw(st.sampled_from(["", "", "swap"]))
    return f"(({scalar}) {op} ({vector}))" if swap else f"(({vector}) {op} ({scalar}))"


def _with_vector(draw: st.DrawFn, depth: int, exact: bool) -> str:
    op, operands = _operator(draw, exact)
    left, right = _vector(draw, depth, exact=operands), _vector(draw, depth, exact=operands)
    style = draw(st.sampled_from(["plain", "on", "ignoring", "one", "left", "right"]))
    words: list[str] = draw(LABELS)
    if style == "one":
        return f"(({left}) {op} on () group_left () (sum({right})))"
    if style in ("left", "right"):
        included = [x for x in draw(LABELS) if x not in words]
        group = f"group_{style} ({', '.join(included)})"
        many = f"on ({', '.join(words)}) {group}"
        single = f"max by ({', '.join([*words, *included])}) "
        if style == "left":
            return f"(({left}) {op} {many} {single}({right}))"
        return f"({single}({left}) {op} {many} ({right}))"
    how = "" if style == "plain" else f" {style} ({', '.join(words)})"
    if style == "on":
        left, right = f"max by ({', '.join(words)}) ({left})", f"sum by ({', '.join(words)}) ({right})"
    return f"(({left}) {op}{how} ({right}))"


def _set(draw: st.DrawFn, depth: int, exact: bool) -> str:
    op = draw(st.sampled_from(["and", "or", "unless"]))
    words = ", ".join(draw(LABELS))
    how = draw(st.sampled_from(["", f" on ({words})", f" ignoring ({words})"]))
    return f"(({_vector(draw, depth, exact=exact)}) {op}{how} ({_vector(draw, depth, exact=exact)}))"


def _function(draw: st.DrawFn, depth: int, exact: bool) -> str:
    function = draw(
        st.sampled_from(
            [
                "abs",
                "ceil",
                "floor",
                "round",
                "clamp",
                "clamp_min",
                "clamp_max",
                "minus",
                "absent",
                "vector",
                "timestamp",
                "replace",
                "join",
                "sort",
            ]
        )
    )
    needs = exact or function in ("ceil", "floor", "round")
    vector = _vector(draw, depth, exact=needs)
    if function == "minus":
        return f"(-({vector}))"
    if function == "vector":
        return f"vector({_scalar(draw, depth, exact=needs)})"
    if function == "timestamp" and exact:
        return f"abs({vector})"
    if function == "clamp":
        return f"clamp({vector}, {draw(NUMBERS)}, {draw(NUMBERS)})"
    if function in ("clamp_min", "clamp_max"):
        return f"{function}({vector}, {_scalar(draw, depth, exact=needs)})"
    if function == "replace":
        target, source = (draw(st.sampled_from(["engine", "model", "x"])) for _ in "ab")
        pattern = draw(st.sampled_from(["(.)(.*)", "e(.)", ".*", ""]))
        return f'label_replace({vector}, "{target}", "$2-$1", "{source}", "{pattern}")'
    if function == "join":
        target = draw(st.sampled_from(["engine", "x", "__name__"]))
        return f'label_join({vector}, "{target}", "_", "engine", "kind")'
    return f"{function}({vector})"


def _inexact_function(draw: st.DrawFn, depth: int, exact: bool) -> str:
    function = draw(st.sampled_from(["sqrt", "exp", "ln", "log2", "log10"]))
    return f"{function}({_vector(draw, depth, exact=True)})"


def _histogram(draw: st.DrawFn, depth: int, exact: bool) -> str:
    buckets = draw(BUCKETS) + draw(OFFSETS)
    if draw(st.sampled_from(["cumulative", "increase"])) == "increase":
        buckets = f"changes({draw(BUCKETS)}[{draw(LENGTHS)}])"
    wrap = draw(st.sampled_from(["", "sum by (le) ", "sum by (le, engine, kind) ", "sum without (model) "]))
    return f"histogram_quantile({draw(QUANTILES)}, {wrap}({buckets}))"
