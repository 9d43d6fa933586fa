"""A first look at a query's text, before the parser sees it.

promql-parser recurses without a limit, gives no positions, and accepts more than Prometheus 2.42 does. So
the text is split into tokens here once: too long, too deep or outside the subset is refused with the exact
place, and what is handed on cannot exhaust the parser's stack.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvitals.series.promql.promql_error import InvalidPromQLError, PromQLError, shorten

MAX_LENGTH = 16 * 1024
MAX_NESTING = 60
MAX_OPERATORS = 400
MAX_TOKENS = 4000
MAX_DURATION = 10 * 365 * 86400.0

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}

_DURATION = r"(?:[0-9]+(?:ms|[smhdwy]))+"
_TOKEN = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<space>\s+|\#[^\n]*)
    |(?P<op>=~|!~|==|!=|<=|>=|[-+*/%^<>=(){}\],])
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<duration>""" + _DURATION + r""")(?![a-zA-Z0-9_.])
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))(?![a-zA-Z0-9_.])""",
    re.VERBOSE,
)  # fmt: skip
_RANGE = re.compile(rf"\s*(?P<range>{_DURATION})\s*(?::\s*(?P<step>{_DURATION})?\s*)?\]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIRS = {")": "(", "}": "{", "]": "["}
_HINTS = {
    "@": "the @ modifier is not in the subset: use offset",
    "$": "'$' is left in the query: expand its parameters first",
    "`": "back-quoted strings are not in the subset: use double quotes",
    '"': "unterminated string",
    "'": "unterminated string",
}


class Token(NamedTuple):
    kind: str
    text: str
    offset: int


def tokenize(text: str, length: int = MAX_LENGTH) -> list[Token]:
    """The tokens of `text` without spaces and comments; a bracketed range is one token of kind `range`.

    Raises PromQLError with the place for anything that is too large or is no token of the subset.
    """
    most = MAX_TOKENS * max(1, length // MAX_LENGTH)
    if len(text) > length:
        raise PromQLError(f"the query has {len(text)} characters, but only {length} are allowed: split it")
    if (half := _SURROGATE.search(text)) is not None:
        raise PromQLError("the query has half of a surrogate pair: write whole characters", offset=half.start())
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            token = _range(text, at)
            tokens.append(token)
            at += len(token.text)
        else:
            kind = found.lastgroup
            if kind != "space":
                tokens.append(Token(kind or "", found.group(), at))
                if kind == "duration":
                    _check_duration(found.group(), at)
            at = found.end()
        if len(tokens) > most:
            raise PromQLError(f"the query has more than {most} tokens: split it", offset=at)
    _check_depth(tokens)
    return tokens


def _range(text: str, at: int) -> Token:
    """The bracketed range at a place where no other token is. Raises PromQLError."""
    if text[at] != "[":
        hint = _HINTS.get(text[at], f"cannot read {shorten(text[at : at + 20])!r}")
        raise PromQLError(hint, offset=at)
    found = _RANGE.match(text, at + 1)
    if not found:
        raise PromQLError("expected a duration as in [5m], or a subquery as in [1h:1m]", offset=at)
    _check_duration(found["range"], at)
    _check_duration(found["step"] or "1m", at)
    return Token("range", text[at : found.end()], at)


def _check_duration(text: str, at: int) -> None:
    parts = re.findall(r"([0-9]+)(ms|[smhdwy])", text)
    if len(text) > 40 or sum(int(count) * _SECONDS[unit] for count, unit in parts) > MAX_DURATION:
        raise PromQLError(f"the duration {shorten(text, 40)} is too long", offset=at)


def _check_depth(tokens: list[Token]) -> None:
    open_: list[Token] = []
    operators = 0
    for token in tokens:
        where = token.offset
        if token.kind != "op":
            operators += token.kind == "name" and token.text.lower() in ("and", "or", "unless")
        elif token.text in "({":
            open_.append(token)
        elif token.text in ")}":
            if not open_ or open_.pop().text != _PAIRS[token.text]:
                raise InvalidPromQLError(f"unexpected {token.text!r}", offset=where)
        else:
            operators += token.text not in (",", "=", "=~", "!~")
        if len(open_) > MAX_NESTING:
            raise PromQLError(f"parentheses are nested deeper than {MAX_NESTING}", offset=where)
        if operators > MAX_OPERATORS:
            raise PromQLError(f"the query has more than {MAX_OPERATORS} operators: split it", offset=where)
    if open_:
        raise InvalidPromQLError(f"{open_[-1].text!r} is not closed", offset=open_[-1].offset)
