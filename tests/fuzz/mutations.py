"""Sessions of pages, and how they are made strange.

A session is what one target answers over time: pages one after another, as one text with `MARK` lines between them, so
that a fuzzer that knows only bytes can work on it. `mutate` changes a session as engines, proxies and bad luck do, and
as nobody ever would.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "exposition"
MARK = b"\n=== next scrape\n"
MAX_SESSION_BYTES = 150_000
_PAGE_LINES = 120

NUMBERS = (
    b"NaN", b"+Inf", b"-Inf", b"nan", b"Infinity", b"0", b"-0", b"-1", b"1e308", b"-1e308", b"1e400", b"5e-324",
    b"0x10", b"1_000", b"", b"1.", b".5", b"1e", b"--1", b"9007199254740993", b"9223372036854775794",
    b"18446744073709551616",
    b"\xd9\xa1", b"1 2", b"1 2 3", b"1 1700000000000", b"1 # {trace_id=\"a\"} 1", b"true", b"1,5", b"1e-5000",
)  # fmt: skip
VALUES = (
    b"", b"0", b"1", b"-1", b"NaN", b"+Inf", b"None", b"True", b"a" * 600, b"a" * 70_000, "é\u202e\U0001f642".encode(),
    b"\\n", b"\\\\", b'\\"', b"\\x", b"\xff", b"\x00", b"a,b,,c", b"0.32.0", b"99.99", b"1e9", b"prefill", b"}", b"{",
    b"#",
)  # fmt: skip
TYPES = (b"counter", b"gauge", b"histogram", b"summary", b"untyped", b"info", b"banana", b"")
PREFIXES = (
    b"vllm:", b"sglang:", b"sglang_", b"dynamo_frontend_", b"dynamo_component_", b"DCGM_FI_", b"lmcache:", b"mooncake_",
    b"vllm_router:", b"nixl_", b"litellm_", b"tgi_", b"gen_ai_", b"ray_vllm_", b"process_", b"",
)  # fmt: skip

_NUMBER = re.compile(rb"(?<= )[^ \n]+(?=\n|\Z)")
_LABEL = re.compile(rb'(?<!\w)([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"')
_PREFIX = re.compile(rb"^([a-zA-Z]+[:_])", re.MULTILINE)
_TOKEN = re.compile(rb"[ {}\",=]")
_TYPE = re.compile(rb"(?m)^(# TYPE \S+) \S+")


@cache
def recorded() -> list[bytes]:
    """Every recorded page."""
    return [path.read_bytes() for path in sorted(FIXTURES.rglob("*.prom"))]


def seeds() -> list[bytes]:
    """Sessions of recorded pages, cut to some of their lines so that many fit into a minute."""
    rng = random.Random(1)
    found = []
    for page in recorded():
        lines = page.split(b"\n")[:-1]
        start = rng.randrange(max(1, len(lines) - _PAGE_LINES))
        part = b"\n".join(lines[start : start + _PAGE_LINES]) + b"\n"
        found.append(part + MARK + part)
    return found


def pages(session: bytes) -> list[bytes]:
    """The pages of a session, at most 8 of them."""
    return session[:MAX_SESSION_BYTES].split(MARK)[:8]


def mutate(session: bytes, rng: random.Random) -> bytes:
    """The session with a few changes, most of them in its last page, before which others went well."""
    found = session.split(MARK)
    if rng.random() < 0.5 and len(found) < 6:
        found.append(_other_numbers(found[-1], rng))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 8))):
        at = len(found) - 1 if rng.random() < 0.6 else rng.randrange(len(found))
        if rng.random() < 0.1:
            found = _SESSIONS[rng.randrange(len(_SESSIONS))](found, at, rng)
        else:
            found[at] = rng.choice(_PAGES)(found[at], rng)
    return MARK.join(found)[:MAX_SESSION_BYTES]


# Of a page


def _flip(page: bytes, rng: random.Random) -> bytes:
    changed = bytearray(page)
    for _ in range(rng.randint(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _insert(page: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(page))
    junk = rng.choice(
        (rng.randbytes(4), b"\n", b" ", b'"', b"{", b"}", b"\t", b"\r", b"# EOF\n", b"\xef\xbb\xbf", b"\\")
    )
    return page[:at] + junk + page[at:]


def _cut(page: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(page))
    return page[:start] + page[start + rng.choice((1, 10, 1000, len(page))) :]


def _lines(change: Callable[[list[bytes], random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    def changed(page: bytes, rng: random.Random) -> bytes:
        lines = page.split(b"\n")
        change(lines, rng)
        return b"\n".join(lines)

    return changed


@_lines
def _drop_lines(lines: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(lines))
    del lines[start : start + rng.choice((1, 1, 5, 20))]


@_lines
def _repeat_lines(lines: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.choice((1, 3, 10))]
    at = rng.randint(0, len(lines))
    lines[at:at] = block


@_lines
def _within_line(lines: list[bytes], rng: random.Random) -> None:
    """A part of a line is gone, from one of its tokens to another."""
    at = rng.randrange(len(lines))
    places = [0, *(match.start() for match in _TOKEN.finditer(lines[at])), len(lines[at])]
    start, end = sorted((rng.choice(places), rng.choice(places)))
    lines[at] = lines[at][:start] + lines[at][end + rng.choice((0, 1)) :]


@_lines
def _shuffle(lines: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(lines))
    block = lines[start : start + 30]
    rng.shuffle(block)
    lines[start : start + 30] = block


@_lines
def _guest_lines(lines: list[bytes], rng: random.Random) -> None:
    """Lines of another engine's page."""
    other = rng.choice(recorded()).split(b"\n")
    start = rng.randrange(len(other))
    at = rng.randint(0, len(lines) - 1)
    lines[at:at] = other[start : start + rng.choice((1, 10, 40))]


@_lines
def _explode(lines: list[bytes], rng: random.Random) -> None:
    """One series many times, a label of which goes on changing."""
    at = rng.randrange(len(lines))
    label = rng.choice(list(_LABEL.finditer(lines[at])) or [None])
    if label is not None:
        line, (start, end) = lines[at], label.span(2)
        lines[at:at] = [line[:start] + b"%d" % i + line[end:] for i in range(rng.choice((10, 100, 1000)))]


def _replace(pattern: re.Pattern[bytes], group: int, by: tuple[bytes, ...]) -> Callable[[bytes, random.Random], bytes]:
    def changed(page: bytes, rng: random.Random) -> bytes:
        for _ in range(rng.choice((1, 1, 3, 10))):
            found = list(pattern.finditer(page))
            if found:
                start, end = rng.choice(found).span(group)
                page = page[:start] + rng.choice(by) + page[end:]
        return page

    return changed


def _other_numbers(page: bytes, rng: random.Random) -> bytes:
    """Counters that jump and fall."""
    factor = rng.choice((0.0, 0.5, 0.999, 1.001, 2.0, 1e6, -1.0))

    def other(match: re.Match[bytes]) -> bytes:
        try:
            return repr(float(match[0]) * factor).encode() if rng.random() < 0.3 else match[0]
        except ValueError:
            return match[0]

    return _NUMBER.sub(other, page)


def _rename(page: bytes, rng: random.Random) -> bytes:
    """The names of another program."""
    found = [match[1] for match in _PREFIX.finditer(page)]
    if not found:
        return page
    old, new = rng.choice(found), rng.choice(PREFIXES)
    return page.replace(b"\n" + old, b"\n" + new, rng.choice((-1, 1, 10)))


def _type(page: bytes, rng: random.Random) -> bytes:
    kinds = list(_TYPE.finditer(page))
    if not kinds:
        return page
    match = rng.choice(kinds)
    return page[: match.end(1)] + b" " + rng.choice(TYPES) + page[match.end() :]


def _other_labels(page: bytes, rng: random.Random) -> bytes:
    """A label gets another name or another value, everywhere on the page."""
    names = {match[1] for match in _LABEL.finditer(page)}
    if not names:
        return page
    old, value = rng.choice(sorted(names)), rng.choice(VALUES)
    if rng.random() < 0.5:
        return page.replace(old + b"=", rng.choice(sorted(names)) + b"=")
    return re.sub(
        re.escape(old) + rb'="[^"\n]*"', lambda _: old + b'="' + value + b'"', page, count=rng.choice((0, 1, 5))
    )


def _windows_lines(page: bytes, rng: random.Random) -> bytes:
    return page.replace(b"\n", b"\r\n", rng.choice((-1, 1, 10)))


def _end(page: bytes, rng: random.Random) -> bytes:
    return rng.choice((page.rstrip(b"\n"), page + b"\n\n", page + b"# EOF\n", page + b"\x00", b"", page * 2))


_PAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _insert, _cut, _within_line, _within_line, _drop_lines, _repeat_lines, _shuffle, _guest_lines, _explode,
    _other_numbers, _other_numbers, _replace(_NUMBER, 0, NUMBERS), _replace(_NUMBER, 0, NUMBERS),
    _replace(_LABEL, 2, VALUES), _replace(_LABEL, 2, VALUES), _rename, _type, _other_labels, _windows_lines, _end,
)  # fmt: skip


# Of a session


def _again(found: list[bytes], at: int, rng: random.Random) -> list[bytes]:
    """The same page once more, as of an engine where nothing happens."""
    return [*found[: at + 1], found[at], *found[at + 1 :]][:8]


def _swap(found: list[bytes], at: int, rng: random.Random) -> list[bytes]:
    other = rng.randrange(len(found))
    found[at], found[other] = found[other], found[at]
    return found


def _other_program(found: list[bytes], at: int, rng: random.Random) -> list[bytes]:
    """Another program listens on the port from now on, for a while."""
    return [*found[: at + 1], rng.choice(recorded()), *found[at + 1 :]][:8]


def _missing(found: list[bytes], at: int, rng: random.Random) -> list[bytes]:
    return [*found[:at], b"", *found[at:]][:8]


_SESSIONS = (_again, _again, _swap, _other_program, _missing)
