"""Parsing: what is taken, how it is printed, what is refused and how."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.series.promql import Expr, PromQLError, Range, Selector, parse
from kvitals.series.promql.check import FUNCTIONS, type_of
from kvitals.series.promql.nodes import AGGREGATIONS, Binary
from kvitals.series.types import Matcher, MatchOp
from tests.support.loops import for_each


@for_each(
    "text, canonical",
    [
        ("foo", "foo"),
        (" foo { a = 'b' , } # a comment", 'foo{a="b"}'),
        ('{__name__="foo"}', "foo"),
        ('{__name__=~"foo|bar"}', '{__name__=~"foo|bar"}'),
        ('{__name__="sum"}', '{__name__="sum"}'),
        ("kvitals:ttft_p99_seconds", "kvitals:ttft_p99_seconds"),
        ('foo{a="q\\"\\\\\\n"}', 'foo{a="q\\"\\\\\\n"}'),
        ("foo offset 90m", "foo offset 1h30m"),
        ("foo offset -1w", "foo offset -7d"),
        ("rate(foo[1m500ms])", "rate(foo[1m500ms])"),
        ("rate(foo[5m] offset 1d)", "rate(foo[5m] offset 1d)"),
        ("max_over_time((foo)[1h:])", "max_over_time(foo[1h:])"),
        ("max_over_time((foo offset 1m)[1h:5m] offset 2m)", "max_over_time((foo offset 1m)[1h:5m] offset 2m)"),
        ("max_over_time((a/b)[1h:5m])", "max_over_time((a / b)[1h:5m])"),
        ("sum(foo) by (b, a, b)", "sum by (a, b) (foo)"),
        ("sum by () (foo)", "sum(foo)"),
        ("SUM without () (foo)", "sum without () (foo)"),
        ("topk(3, foo)", "topk(3, foo)"),
        ("a+b*c", "a + b * c"),
        ("(a+b)*c", "(a + b) * c"),
        ("a-(b-c)", "a - (b - c)"),
        ("(a-b)-c", "a - b - c"),
        ("a^b^c", "a ^ b ^ c"),
        ("(a^b)^c", "(a ^ b) ^ c"),
        ("-a^2", "-(a ^ 2)"),
        ("(-2)^2", "(-2) ^ 2"),
        ("-2^2", "-(2 ^ 2)"),
        ("- - a", "-(-a)"),
        ("+a", "a"),
        ("-(5)", "-5"),
        ("a or b and c unless d", "a or b and c unless d"),
        ("(a or b) and c", "(a or b) and c"),
        ("a > bool on(x) b", "a > bool on (x) b"),
        ("a*ignoring(y,x)group_left(z)b", "a * ignoring (x, y) group_left (z) b"),
        ("a / ignoring () b", "a / b"),
        ("a / on () group_right () b", "a / on () group_right () b"),
        ("1e3 + 0x10 + .5 + Inf + NaN", "1000 + 16 + 0.5 + Inf + NaN"),
        ("vector(1e300)", "vector(1e+300)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    expr = parse(text)
    assert str(expr) == canonical
    assert parse(canonical) == expr
    assert hash(parse(canonical)) == hash(expr)


def test_nodes() -> None:
    assert parse('rate(foo{a!="b"}[5m] offset 1m)').children()[0] == Range(
        Selector("foo", (Matcher("a", MatchOp.NE, "b"),), 60.0), 300.0
    )


@for_each(
    "text, says, offset",
    [
        ("", "empty", None),
        ("foo @ 5", "@ modifier is not in the subset: use offset", 4),
        ("sum(foo) + absent_over_time(foo[5m])", "absent_over_time is not in the subset; allowed are abs", 11),
        ("count_values('x', foo)", "count_values is not in the subset", 0),
        ("stdvar by (a) (foo)", "stdvar is not in the subset; aggregations are avg bottomk", None),
        ("foo atan2 bar", "atan2 is not in the subset", 4),
        ("rate(foo[$window])", "expected a duration", 8),
        ("$signal > 1", "expand its parameters first", 0),
        ("rate(foo[5])", "expected a duration as in [5m]", 8),
        ("rate(foo[5m)", "expected a duration as in [5m]", 8),
        ("foo[11y]", "too long", 3),
        ("foo offset 5", "an offset needs a unit", 11),
        ("foo offset inf", "an offset is a duration", 11),
        ("foo > 5m", "the duration 5m is not allowed here", 6),
        ("sum(foo", "'(' is not closed", 3),
        ("sum(foo))", "unexpected ')'", 8),
        ("foo{a='b'", "'{' is not closed", 3),
        ("foo{a='b}", "unterminated string", 6),
        ("foo{a=`b`}", "double quotes", 6),
        ('{"foo"}', "quoted names", 1),
        ('foo{a="b" or c="d"}', "`or` between matchers", None),
        ("foo ! bar", "cannot read '! bar'", 4),
        ("a + fill(0) b", "fill is not in the subset", 4),
        ("foo bar", "foo bar", None),
        ("rate(foo)", "matrix in call to function 'rate', got vector: rate(foo)", None),
        ("rate(sum(foo))", "rate", None),
        ("foo[5m] + 1", "binary expression must contain only scalar and instant vector", None),
        ("sum(5)", "sum(5)", None),
        ("1 > 2", "BOOL", None),
        ("foo + bool bar", "bool modifier can only be used on comparison", None),
        ("foo and 1", "set operator 'and' not allowed", None),
        ("foo * on(a) group_left(a) bar", "must not occur in ON and GROUP", None),
        ("{a=''}", "non-empty matcher", None),
        ("{a=~'.*'}", "non-empty matcher", None),
        ("foo{a=~'('}", "missing ): (; use RE2 syntax, as for Prometheus; in a=~", None),
        ("foo{a=~'(((.{1,100}){1,100}){1,100})'}", "invalid repetition size", None),
        ("foo{a=~'" + "x" * 10_001 + "'}", "10001 characters, but only 10000 are allowed", None),
        ("foo{a=~'" + "." * 10_000 + "'}", "too large when compiled", None),
        ("foo{" + ",".join(f"a{n}=~'x{n}.{{900}}'" for n in range(9)) + "}", "too large together", None),
        ("label_replace(foo, 'a', '$1', 'b', '(')", "missing ): (", None),
        ("foo{a='\ud800'}", "half of a surrogate pair", 7),
        ("foo{__name__=~'b'}", "metric name must not be set twice: foo{__name__=~'b'}", None),
        ("label_replace(foo, 'a b', '$1', 'b', '.*')", "'a b' is not a label name", None),
        ("label_join(foo, 'a', ',', '1')", "'1' is not a label name", None),
        ("label_join(foo, 'a')", "at least 3", None),
        ("round(foo, 1, 2)", "at most 2", None),
        ("x" * 20_000, "20000 characters, but only 16384 are allowed", None),
        ("(" * 100 + "x" + ")" * 100, "nested deeper than 60", 60),
        ("x+" * 1000 + "x", "more than 400 operators", None),
        ("x+" * 5000 + "x", "more than 4000 tokens", None),
        ("-" * 3000 + "x", "more than 400 operators", None),
        ("x or " * 200 + "x", "nested deeper than 100 levels", None),
        ("abs(" * 80 + "x" + ")" * 80, "nested deeper than 60", None),
    ],
)
def test_refusals(text: str, says: str, offset: int | None) -> None:
    with pytest.raises(PromQLError) as caught:
        parse(text)
    message = str(caught.value)
    assert says in message
    assert len(message) < 1000
    if offset is not None:
        assert caught.value.offset == offset
        assert f"at character {offset}" in message


def test_long_but_flat_queries_are_taken() -> None:
    parse(" + ".join(f"x{i}" for i in range(90)))
    parse("(" * 50 + "x" + ")" * 50)


NAMES = st.sampled_from(["foo", "bar:baz", "sum", "rate", "le", "by", "offset", "nan", "x1"])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)
NUMBERS = st.floats() | st.integers(-9, 9).map(float)
LABELS = st.lists(st.sampled_from(["a", "b", "le", "by", "__name__"]), max_size=2).map(", ".join)


@st.composite
def selectors(draw: st.DrawFn) -> str:
    matchers = [
        f"{draw(st.sampled_from('abc'))}{op}{quoted(draw(VALUES if '~' not in op else st.sampled_from(['x|y', '.+'])))}"
        for op in draw(st.lists(st.sampled_from(["=", "!=", "=~", "!~"]), max_size=2))
    ]
    return "{" + ", ".join([f'__name__="{draw(NAMES)}"', *matchers]) + "}"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def duration(draw: st.DrawFn) -> str:
    return f"{draw(st.integers(1, 10**6))}{draw(st.sampled_from(['ms', 's', 'm']))}"


@st.composite
def vectors(draw: st.DrawFn, depth: int = 3) -> str:
    sign = draw(st.sampled_from(["none", "", "-"]))
    offset = "" if sign == "none" else f" offset {sign}{duration(draw)}"
    kind = draw(st.sampled_from(["selector", "over", "sub", "binary", "scalar", "call", "sum", "topk", "minus"]))
    if depth == 0 or kind == "selector":
        return draw(selectors()) + offset
    inner = draw(vectors(depth - 1))
    if kind == "over":
        function = draw(st.sampled_from([n for n, f in FUNCTIONS.items() if f.args == ("range",)]))
        return f"{function}({draw(selectors())}[{duration(draw)}]{offset})"
    if kind == "sub":
        step = draw(st.sampled_from(["", duration(draw)]))
        return f"max_over_time(({inner})[{duration(draw)}:{step}]{offset})"
    if kind == "call":
        function = draw(st.sampled_from([n for n, f in FUNCTIONS.items() if f.args == ("vector",) and n != "scalar"]))
        return f"{function}({inner})"
    if kind == "sum":
        return f"sum {draw(st.sampled_from(['by', 'without']))} ({draw(LABELS)}) ({inner})"
    if kind == "topk":
        return f"topk(scalar({inner}), {draw(vectors(depth - 1))})"
    if kind == "minus":
        return f"-({inner})"
    if kind == "scalar":
        op = draw(st.sampled_from(["+", "^", "> bool", "<="]))
        return f"({draw(NUMBERS)!r}) {op} ({inner})".replace("nan", "NaN").replace("inf", "Inf")
    how = draw(st.sampled_from(["", "on (a)", "ignoring (b) group_left (c)", "on () group_right ()"]))
    op = draw(st.sampled_from(["+", "-", "*", "/", "%", "^", "==", "< bool"]))
    brackets = draw(st.sampled_from(["{} {} {} {}", "({}) {} {} ({})"]))
    return brackets.format(inner, op, how, draw(vectors(depth - 1)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(vectors())
def test_printed_text_parses_to_the_same(text: str) -> None:
    try:
        expr = parse(text)
    except PromQLError:
        return  # unary minus and comparisons without parentheses may come out otherwise
    printed = str(expr)
    assert parse(printed) == expr
    assert str(parse(printed)) == printed
    assert type_of(expr) == "vector"


WORDS = [
    *FUNCTIONS,
    *AGGREGATIONS,
    *[
        "(",
        "(",
        ")",
        ")",
        "{",
        "}",
        "[5m]",
        "[1h:]",
        "[1m:5s]",
        "=",
        "=~",
        "!=",
        "==",
        ">",
        "+",
        "-",
        "*",
        "/",
        "^",
        "%",
        ",",
        "'",
        '"',
        "\\",
        "@",
        "$",
        "#",
    ],
]
WORDS += [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "offset",
    "bool",
    "and",
    "or",
    "unless",
    "foo",
    "5",
    "5m",
    "1e9",
    "inf",
    "nan",
    "'a'",
    '"b"',
    "é",
    "\x00",
    "99999y",
]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(["", " "]))
def test_any_text_is_an_expression_or_a_promql_error(words: list[str], between: str) -> None:
    try:
        result: Expr = parse(between.join(words))
    except PromQLError:
        return
    assert parse(str(result)) == result


@pytest.mark.parametrize("op", ["=", "!=", "=~", "!~"])
@pytest.mark.parametrize(
    ("written", "value"),
    [("b", "b"), ("=b", "=b"), ("!b", "!b"), ("~b", "~b"), (r"b\n\"c", 'b\n"c'), (r"\u00e9", "é")],
)
def test_matchers_keep_their_operator_and_value(op: str, written: str, value: str) -> None:
    expr = parse(f'foo{{a{op}"{written}"}} == on (a) bar{{c{op}\'d\', e="f"}}')
    assert isinstance(expr, Binary) and isinstance(expr.left, Selector) and isinstance(expr.right, Selector)
    assert expr.left.matchers == (Matcher("a", MatchOp(op), value),)
    assert expr.right.matchers == (Matcher("c", MatchOp(op), "d"), Matcher("e", MatchOp.EQ, "f"))


@pytest.mark.parametrize("pattern", [r"\\Qa.b\\E", "(?i)ab", r"\\pL+", "[[:alpha:]]", "(x+)+y", "a{,2}", "(.?){40}x"])
def test_patterns_of_prometheus_are_taken(pattern: str) -> None:
    """The syntax's parser is not asked about them: its own engine has another syntax."""
    assert str(parse(f'foo{{a=~"{pattern}"}}')) == f'foo{{a=~"{pattern}"}}'
    parse(f'label_replace(foo, "a", "$1", "b", "{pattern}")')
