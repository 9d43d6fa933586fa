"""The flame of time to first token: it adds up, it agrees with the tail's phases, and other programs can read it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvitals.agent.requests.first_token_flame import NOT_REPORTED, ROOT, FirstTokenFlame, difference, first_token_flame
from kvitals.agent.requests.record import RequestPhase, RequestRecord
from kvitals.app.flame_files import folded_stacks, speedscope
from kvitals.app.request_sources import flames_of_recording
from kvitals.config import Config
from kvitals.ui.cli.main import main

CAPTURES = Path(__file__).parents[2] / "captures"
RECORDED = [
    CAPTURES / "ledger" / "thrash.kvcap",
    CAPTURES / "requests" / "agreement.kvcap",
    CAPTURES / "requests" / "pair.kvcap",
    CAPTURES / "incidents" / "tenant_floods_slots-1.kvcap",
]
ALWAYS = (0.0, 1e12)


def request(
    n: int, tenant: str, ttft: float | None, queue: float | None, prefill: float | None, *, cached: int | None = None
) -> RequestRecord:
    """A request that ended at second n; its prefill began when its queue time ended."""
    start = 100.0 + n
    phases = (
        RequestPhase("queue", queue, "measured", start),
        RequestPhase("prefill", prefill, "measured", None if queue is None else start + queue),
        RequestPhase("decode", 1.0, "measured", None if ttft is None else start + ttft),
    )
    return RequestRecord(
        f"r{n}", start, start + 2.0, True, tenant=tenant, engines={"unified": "one"}, phases=phases, ttft=ttft, e2e=2.0,
        prompt_tokens=100, cached_tokens=cached, output_tokens=10,
    )  # fmt: skip


def test_recorded_requests_add_up() -> None:
    for path in RECORDED:
        (flame,), _ = flames_of_recording(path, Config(), [ALWAYS])
        assert flame.requests > 20, path
        assert sum(stack.seconds for stack in flame.stacks) == pytest.approx(flame.seconds, rel=0.01), path
        assert {stack.frames[0] for stack in flame.stacks} == {ROOT}
        assert all(stack.seconds > 0.0 for stack in flame.stacks)


def test_time_goes_to_phase_reason_and_tenant() -> None:
    records = [request(0, "a", 0.5, 0.0, 0.5, cached=0), request(0, "b", 0.9, 0.6, 0.2, cached=80)]
    flame = first_token_flame(records, *ALWAYS)
    stacks = {stack.frames[1:]: stack.seconds for stack in flame.stacks}
    assert stacks == {
        ("prefill", "no prompt token cached", "tenant a"): pytest.approx(0.5),
        ("prefill", "most of the prompt cached", "tenant b"): pytest.approx(0.2),
        ("queue", "behind tenant a", "tenant b"): pytest.approx(0.6),
        ("unattributed", "tenant b"): pytest.approx(0.1),
    }


def test_phases_that_nothing_reports_are_not_called_unattributed() -> None:
    flame = first_token_flame([request(0, "a", 0.5, None, None)], *ALWAYS)
    assert [stack.frames[1:] for stack in flame.stacks] == [(NOT_REPORTED, "tenant a")]


def test_requests_without_a_first_token_are_counted_apart() -> None:
    flame = first_token_flame([request(0, "a", None, 1.0, None), request(1, "a", 0.5, 0.1, 0.4)], *ALWAYS)
    assert (flame.requests, flame.without, flame.seconds) == (1, 1, 0.5)


def test_a_difference_is_that_of_the_means() -> None:
    records = [request(n, "a", 0.2, 0.0, 0.2, cached=80) for n in range(5)]
    records += [request(n, "a", 0.9, 0.6, 0.3, cached=0) for n in range(50, 53)]
    before, after = (first_token_flame(records, 100.0, 140.0), first_token_flame(records, 140.0, 200.0))
    changed = difference(before, after)
    more, less = (sum(stack.seconds for stack in stacks) for stacks in (changed.more, changed.less))
    assert more - less == pytest.approx(0.9 - 0.2)
    assert less == pytest.approx(0.2)  # of prompts that were cached


def test_nothing_is_a_flame_without_stacks() -> None:
    assert first_token_flame([], *ALWAYS) == FirstTokenFlame(
        start=0.0, end=1e12, requests=0, without=0, seconds=0.0, stacks=()
    )


def test_names_cannot_end_a_frame_or_a_line() -> None:
    flame = first_token_flame([request(0, "a;b\n1", 0.5, 0.0, 0.5)], *ALWAYS)
    (line,) = folded_stacks(flame).splitlines()
    assert line == "time to first token;prefill;cached share of the prompt unknown;tenant a,b 1 500000"


def test_speedscope_has_every_second() -> None:
    (flame,), _ = flames_of_recording(RECORDED[0], Config(), [ALWAYS])
    document = msgspec.json.decode(msgspec.json.encode(speedscope(flame, "name")))
    (profile,) = document["profiles"]
    frames = document["shared"]["frames"]
    assert profile["type"] == "sampled" and profile["unit"] == "seconds"
    assert len(profile["samples"]) == len(profile["weights"]) == len(flame.stacks)
    assert profile["endValue"] == pytest.approx(flame.seconds, rel=0.01)
    assert frames[profile["samples"][0][0]]["name"] == ROOT


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["trace", *words])
    shown = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, shown.out, shown.err


def test_the_command_draws_it(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RECORDED[0])
    code, out, _ = run(capsys, "--flame", path)
    assert code == 0 and "1005 requests waited 63.41 s" in out and "prefill" in out
    code, out, _ = run(capsys, "--flame", "--from", "+60s", "--minus", "+0s..+40s", path)
    assert code == 0 and out.startswith("Before: 545 requests") and "Shorter, -40.0 ms a request" in out
    code, out, _ = run(capsys, "--flame", "-o", "folded", path)
    assert code == 0 and out.startswith("time to first token;prefill;")
    code, out, _ = run(capsys, "--flame", "-o", "speedscope", path)
    assert code == 0 and msgspec.json.decode(out)["exporter"] == "kvitals"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--flame", "--minus", "+40s..+10s"], "a window must begin before it ends"),
        (["--flame", "--minus", "+40s"], "is not a time"),
        (["--flame", "--json"], "without --json or --tenant"),
        (["--newest", "2", "--from", "+1s"], "require --flame"),
    ],
)
def test_what_it_cannot_draw_it_explains(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *words, str(RECORDED[0]))
    assert code == 2 and message in err
