"""`kvitals whatif` and `kvitals whatif --curve` as a user would type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvitals.diagnoser.replay_worth import base_of, worth
from kvitals.kvcache.whatif import ReplayRow
from kvitals.ui.cli.main import main

TRACE = str(Path(__file__).parents[2] / "fixtures" / "mooncake" / "conversation-1500.jsonl.gz")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    out = capsys.readouterr()
    return stop.value.code, out.out, out.err


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    rows = json.loads(out)
    assert isinstance(rows, list)
    return rows


def test_rows_are_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(
        capsys,
        "whatif",
        "--trace",
        TRACE,
        "--capacity",
        "500,2x,1024000t,inf",
        "--today",
        "4000",
        "--policy",
        "lru,fifo",
    )
    assert [row["capacity_blocks"] for row in rows] == [500, 8000, 2000, None] * 2
    assert {row["policy"] for row in rows} == {"lru", "fifo"}
    assert rows[1] | {"prefill_saved": 0} == {
        "policy": "lru",
        "routing": "round-robin",
        "nodes": 1,
        "capacity_blocks": 8000,
        "block_size": 512,
        "sample_rate": 1.0,
        "seed": 0,
        "token_hit_rate": 0.174903,
        "block_hit_rate": 0.171982,
        "host_token_hit_rate": None,
        "prefill_tokens": 17311958,
        "load_max_over_mean": 1.0,
        "error": 0.0,
        "observed": 1.0,
        "trace": {
            "format": "Mooncake",
            "time_unit": "ms",
            "block_size": 512,
            "block_size_from": "ids against lengths",
            "agreement": 1.0,
            "sessions": 0,
            "estimated_tokens": False,
            "backwards": 0,
            "repeated": 0,
            "without_output": 0,
        },
        "prefill_saved": 0,
        "seconds_saved": None,
        "ttft_change": None,
    }


def test_gains_are_against_today(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "whatif", "--trace", TRACE, "--today", "4000", "--prefill-rate", "1000")
    assert [row["capacity_blocks"] for row in rows] == [4000, 8000, None]
    today, double, _ = rows
    assert (today["prefill_saved"], today["ttft_change"]) == (0.0, 0.0)
    h1, h2 = today["token_hit_rate"], double["token_hit_rate"]
    assert double["prefill_saved"] == pytest.approx((h2 - h1) / (1 - h1), abs=1e-5)
    assert double["seconds_saved"] == pytest.approx((today["prefill_tokens"] - double["prefill_tokens"]) / 1000)
    assert double["ttft_change"] == pytest.approx(-double["seconds_saved"] / 1500, abs=1e-5)


def test_the_table_keeps_its_figures_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    options = "--capacity 4000 --nodes 2 --routing round-robin,sticky,pooled --host-tier 4000 --sample 0.5"
    code, out, _ = run(capsys, "whatif", "--trace", TRACE, *options.split(), "--prefill-rate", "9000")
    assert code == 0
    assert "…" not in out
    for word in (
        "round-robin",
        "pooled",
        "in host",
        "TTFT",
        "busiest",
        "observed: 100%",
        "95% interval of the sampling error",
    ):
        assert word in " ".join(out.split())


def test_the_curve_shows_how_much_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "curve", "--trace", TRACE, "--today", "8000")
    assert code == 0
    assert "17.49%  today" in out
    assert "90% of the attainable rate (26.99%) needs about" in out
    assert "Today's 8,000 blocks reach 64.8% of the attainable rate." in out
    points = rows_of(capsys, "curve", "--trace", TRACE, "--sample", "0.2", "--seed", "3")
    rates = [point["token_hit_rate"] for point in points]
    assert rates == sorted(rates)
    assert points[-1]["capacity_blocks"] is None
    assert points[-1]["token_hit_rate"] == 0.269949
    assert all(point["error"] > 0 for point in points if 1000 <= (point["capacity_blocks"] or 0) <= 16000)


def test_a_trace_without_reuse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}\n')
    code, out, _ = run(capsys, "curve", "--trace", str(path))
    assert code == 0
    assert "no cache would have a hit" in out
    path.write_text('{"timestamp": 0, "input_length": 6, "hash_ids": []}\n')
    code, _, said = run(capsys, "curve", "--trace", str(path))
    assert code == 2
    assert "these accesses contain no block" in said


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--capacity 2x", "today's capacity is unknown; give it with --today BLOCKS"),
        ("", "choose capacities"),
        ("--capacity 0", "--capacity 0: not a capacity"),
        ("--capacity 1e30", "not a capacity"),
        ("--capacity 5,,6", "not a capacity"),
        ("--capacity 100t", "not a capacity of at least one block"),
        ("--capacity 9 --today none", "--today none: not a capacity"),
        ("--capacity 9 --policy mru", "--policy mru: write some of lru, lfu, fifo, priority"),
        ("--capacity 9 --routing random", "--routing random: write some of round-robin"),
        ("--capacity 9 --nodes 0", "--nodes: 0 nodes: write 1 to 1024"),
        ("--capacity 9 --sample 2", "--sample: a sample of 2"),
        ("--capacity 9 --sample 0.5 --policy lfu", "lfu cannot be estimated from a sample: use all blocks"),
        ("--capacity 9 --sample 0.5", "a cache of 9 blocks holds 4 blocks of a sample of 0.5: sample 1 or more"),
        ("--capacity 900000 --sample 0.0001", "are too few"),
        ("--capacity 9 --prefill-rate -1", "--prefill-rate -1: write prompt tokens a second"),
        ("--capacity 9 --horizon soon", "--horizon: `soon` is not a time"),
        ("--capacity 9 --block-size 0", "--block-size: block size must be from 1 to 65,536 tokens, not 0"),
        ("--capacity " + ",".join(map(str, range(1, 1100))), "more than 1000 rows"),
    ],
)
def test_bad_use_is_told(capsys: pytest.CaptureFixture[str], options: str, told: str) -> None:
    code, out, said = run(capsys, "whatif", "--trace", TRACE, *options.split())
    assert code == 2
    assert out == ""
    assert told in said


def test_a_trace_without_prefix_ids_is_refused_with_what_it_can_answer(capsys: pytest.CaptureFixture[str]) -> None:
    azure = str(Path(__file__).parents[2] / "fixtures" / "traces" / "azure_2023.csv")
    code, _, said = run(capsys, "whatif", "--trace", azure, "--capacity", "9")
    assert code == 2
    assert "the Azure LLM inference format has no prefix ids, so no hit rate can be calculated" in said
    assert f"kvitals size --trace {azure}" in said


def test_the_output_states_how_a_trace_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    bailian = str(Path(__file__).parents[2] / "fixtures" / "traces" / "bailian.jsonl")
    code, out, _ = run(capsys, "whatif", "--trace", bailian, "--capacity", "inf")
    assert code == 0
    assert "Bailian trace; times in s; blocks of 16 tokens, from ids against lengths; 2 named sessions" in out
    (point,) = rows_of(capsys, "whatif", "--trace", bailian, "--capacity", "inf")
    assert point["trace"]["block_size"] == 16 and point["token_hit_rate"] == 0.519931


def test_a_trace_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = run(capsys, "curve", "--trace", "/nowhere/trace.jsonl")
    assert code == 2
    assert "/nowhere/trace.jsonl cannot be read: No such file or directory" in said


def test_nothing_to_save_is_not_a_share() -> None:
    nothing = ReplayRow("lru", "pooled", 1, 5, 16, 1.0, 0, 1.0, 1.0, None, 0, 1.0, 0.0)
    assert base_of([nothing], None) is nothing
    assert worth(nothing, nothing, 3, None).prefill_saved is None


def test_guessed_sessions_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--capacity", "500", "--nodes", "2", "--routing")
    guessed = "sessions are guessed"
    assert guessed in run(capsys, "whatif", "--trace", TRACE, *options, "sticky,pooled")[1]
    assert guessed not in run(capsys, "whatif", "--trace", TRACE, *options, "round-robin,pooled")[1]
    told = str(LEDGER / "thrash.kvcap")  # the tap told them
    assert guessed not in run(capsys, "whatif", "--capture", told, *options, "sticky")[1]


LEDGER = Path(__file__).parents[2] / "captures" / "ledger"


@pytest.mark.parametrize("name", ["healthy", "thrash"])
def test_todays_size_comes_to_what_the_clients_were_told(capsys: pytest.CaptureFixture[str], name: str) -> None:
    (row,) = rows_of(capsys, "whatif", "--capture", str(LEDGER / f"{name}.kvcap"), "--capacity", "1x")
    requests = json.loads((LEDGER / f"{name}.truth.json").read_text())["requests"]
    hit = sum(r["cached_tokens"] for r in requests) / sum(r["prompt_tokens"] for r in requests)
    assert row["token_hit_rate"] == pytest.approx(hit, abs=0.01)
    assert row["observed"] > 0.99


def test_a_recording_without_kv_events_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    demo = Path(__file__).parents[3] / "app" / "demo" / "healthy.kvcap"
    code, out, err = run(capsys, "curve", "--capture", str(demo))
    assert (code, out) == (2, "")
    assert "has no KV events" in err and "--kv-events-config" in err


@pytest.mark.parametrize("options", [("whatif", "--capacity", "inf"), ("whatif", "--curve")])
def test_times_in_the_wrong_unit_are_doubted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """An hour in whole seconds was `in 4 s` of milliseconds, without a word; `kvitals size` doubted it."""
    path = tmp_path / "int_s.jsonl"
    rows = [{"timestamp": n, "input_length": 600, "output_length": 50, "hash_ids": [0, n + 1]} for n in range(3600)]
    path.write_text("\n".join(map(json.dumps, rows)))
    code, _, said = run(capsys, *options, "--trace", str(path))
    assert code == 0
    assert "the 3,600 requests of the trace cover only 3.6 s, with its times read as ms" in " ".join(said.split())


def test_a_trace_of_an_hour_is_not_doubted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ms.jsonl"
    rows = [
        {"timestamp": n * 1000, "input_length": 600, "output_length": 50, "hash_ids": [0, n + 1]} for n in range(3600)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    _, _, said = run(capsys, "whatif", "--trace", str(path), "--capacity", "inf")
    assert "read as" not in said
