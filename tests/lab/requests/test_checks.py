"""The arithmetic by which records are judged. No engine is started here."""

from __future__ import annotations

from dataclasses import replace

from . import checks
from .clients import FINISHED, LEFT, Seen
from .plays import PLAYS
from .tenants import HANG_UPS, HEAVY, LIGHT

SEEN = Seen(
    **{"id": "r", "tenant": "a", "via": "tap", "prompt": 100, "sent": 1000.0, "ended": 1001.0},
    **{"ttft": 0.2, "first": 0.19, "e2e": 1.0, "pieces": 8, "status": FINISHED, "http": 200},
    **{"prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 8},
)
RECORD = {
    **{"id": "r", "tenant": "t-x", "outcome": "success", "start": 1000.0, "end": 1001.0, "ttft": 0.2, "e2e": 1.0},
    **{"prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 8, "sources": {"ttft": "tap"}},
    "phases": [
        {"name": "queue", "seconds": 0.1, "source": "measured"},
        {"name": "decode", "seconds": 0.87, "source": "measured"},
        {"name": "unattributed", "seconds": 0.03, "source": "derived"},
    ],
}


def pair(**record: object) -> checks.Pair:
    return checks.Pair(SEEN, RECORD | record)


def test_near_is_right_and_far_is_not():
    assert checks.quiet("x", [pair(ttft=0.203)] * 50, "ttft").ok
    assert not checks.quiet("x", [pair(ttft=0.206)] * 50, "ttft").ok
    assert not checks.quiet("x", [*[pair()] * 45, *[pair(e2e=1.03)] * 5], "e2e").ok
    assert checks.quiet("x", [*[pair()] * 48, *[pair(e2e=1.03)] * 2], "e2e").ok


def test_a_record_that_does_not_tell_is_not_right():
    assert not checks.quiet("x", [pair(ttft=None)] * 50, "ttft").ok
    assert not checks.quiet("x", [*[pair()] * 49, pair(ttft=None)], "ttft").ok
    assert not checks.loaded("x", [*[pair()] * 49, pair(ttft=None)]).ok
    assert not checks.quiet("x", [], "ttft").ok and not checks.loaded("x", []).ok


def test_an_engines_first_token_is_not_a_clients_first_text():
    assert checks.by_client(pair(), "ttft") == 0.2
    assert checks.by_client(pair(sources={"ttft": "engine"}), "ttft") == 0.19


def test_under_load_the_larger_of_a_share_and_ten_milliseconds_counts():
    slow = replace(SEEN, ttft=2.0)
    assert checks.loaded("x", [checks.Pair(slow, RECORD | {"ttft": 2.09})]).ok
    assert not checks.loaded("x", [checks.Pair(slow, RECORD | {"ttft": 2.11})]).ok
    assert checks.loaded("x", [pair(ttft=0.2095)]).ok


def test_what_the_client_itself_waited_for_a_core_is_told_and_excuses_nothing():
    late, later = replace(SEEN, ttft=0.23, no_core=0.02), replace(SEEN, ttft=0.3, no_core=0.02)
    found = checks.loaded("x", [checks.Pair(one, RECORD | {"ttft": 0.2}) for one in (SEEN, late, later)])
    assert not found.ok and found.said.startswith("1 of 3 within the limit")
    assert found.said.endswith("; 1 of the other 2 but for what the client itself waited for a core")


def test_quantiles_may_be_one_bucket_apart():
    assert checks.quantiles("x", [pair(ttft=0.21)]).ok  # the next bucket begins at 0.2
    assert not checks.quantiles("x", [pair(ttft=0.4)]).ok


def test_unattributed_is_a_share_of_the_whole():
    assert checks.unattributed("x", [pair()]).ok
    assert not checks.unattributed(
        "x", [pair(phases=[{"name": "unattributed", "seconds": 0.06, "source": "derived"}])]
    ).ok


def test_phases_must_add_up_and_be_of_their_source():
    assert checks.adds_up("x", [pair()]).ok and not checks.adds_up("x", [pair(e2e=1.1)]).ok
    assert checks.phase_sources("x", [pair()], {"queue": "measured"}).ok
    assert not checks.phase_sources("x", [pair()], {"queue": "derived"}).ok
    assert not checks.phase_sources("x", [pair()], {"transfer": "derived"}).ok


def test_cached_tokens_are_those_of_the_response_or_unknown():
    assert checks.cached_as_usage("x", [pair()]).ok
    assert not checks.cached_as_usage("x", [pair(cached_tokens=0)]).ok
    assert checks.cached_unknown("x", [pair(cached_tokens=None)]).ok
    assert not checks.cached_unknown("x", [pair(cached_tokens=0)]).ok


def judged(seen: Seen, **record: object) -> tuple[bool, int]:
    found, listed = checks.tenants([seen], {"r": RECORD | record})
    return all(one.ok for one in found), len(listed)


def test_what_a_ledger_has_the_records_must_have():
    assert judged(SEEN) == (True, 0)
    assert judged(SEEN, outcome="aborted") == (False, 0)
    assert judged(SEEN, cached_tokens=32) == (False, 0)
    assert not all(one.ok for one in checks.tenants([SEEN], {})[0])


def test_who_left_beside_the_last_byte_is_listed_and_not_counted():
    left = replace(SEEN, status=LEFT, e2e=None, ended=1000.97)
    assert judged(left, outcome="aborted") == (True, 0)
    assert judged(left) == (True, 1)
    assert judged(replace(left, ended=1000.5)) == (False, 0)


def test_who_left_beside_the_first_output_is_listed():
    left = replace(SEEN, status=LEFT, e2e=None, ttft=None, first=None, ended=1000.21)
    assert judged(left, outcome="aborted") == (True, 1)
    assert judged(replace(left, ended=1000.1), outcome="aborted") == (False, 0)


def test_plays_have_three_light_tenants_and_one_that_is_heavy():
    assert len(LIGHT) == 3 and HEAVY.clients > sum(one.clients for one in LIGHT)
    assert set(HANG_UPS) <= {one.name for one in (*LIGHT, HEAVY)}
    assert set(PLAYS) == {"agreement", "tenants", "pair", "pair_router", "stages"}
