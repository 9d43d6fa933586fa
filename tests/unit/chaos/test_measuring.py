"""What the soak, the report and the chaos suite say of what they saw."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.soak import INTERVAL_SECONDS, Soaked, line
from tests.chaos.faults import __main__ as faults
from tests.chaos.faults.stage import CannotRunError, Stage, Told

MEGABYTE = 1e6


def test_memory_that_grows_has_a_slope_and_noise_has_an_error() -> None:
    steady = [(5.0 * n, 100 * MEGABYTE + (n % 2) * MEGABYTE) for n in range(120)]
    assert abs(line(steady).slope) < 3 * line(steady).error + 1.0
    growing = [(t, size + 1000.0 * t) for t, size in steady]
    assert line(growing).slope == pytest.approx(1000.0, rel=0.01)
    assert line(growing).error < 100.0
    assert line(steady[:2]).slope != line(steady[:2]).slope  # of two points nothing is said


def test_looks_that_are_missed_and_drift() -> None:
    on_time = [INTERVAL_SECONDS * n for n in range(50)]
    assert Soaked(1.0, looks=on_time).missed == 0 and Soaked(1.0, looks=on_time).drift == pytest.approx(0.0)
    without = on_time[:20] + on_time[22:]
    assert Soaked(1.0, looks=without).missed == 2 and Soaked(1.0, looks=without).drift == pytest.approx(0.0)
    slow = [1.02 * t for t in on_time]
    assert Soaked(1.0, looks=slow).drift == pytest.approx(0.02)


@pytest.mark.parametrize("excused", [{}, {"odd": "there is no such thing here"}])
def test_what_can_not_run_fails_unless_it_is_listed(
    excused: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def odd(stage: Stage, told: Told) -> None:
        raise CannotRunError("no namespaces here")

    monkeypatch.setitem(faults.EVERY, "odd", odd)
    broken = asyncio.run(faults.one("odd", excused))
    assert (broken == []) is bool(excused)
    assert all(line.startswith("odd: cannot run here: no namespaces here") for line in broken)
    out = capsys.readouterr().out
    assert ("not run" if excused else "BROKEN") in out and "no namespaces here" in out


def test_a_row_without_its_figure_does_not_hold() -> None:
    row = report.BENCHES["events"].rows[0]
    found, said = report._told(
        row.ours, "sense and ledger 624,711, budget 300,000 operations a second and core; load 1"
    )
    assert (found, said) == (("624,711",), "624,711")
    assert report._told(row.ours, "Traceback") == (None, "not measured")


OUTPUTS = {
    "scrape": """
prometheus       186240     0.30      0.75%          1.611      65
kvitals          186240     0.13      0.32%          0.698      71

ratio 0.433, budget 0.5
""",
    "agent": """
                 up    CPU s  of a core  RSS MB at peak  MB more an hour
prometheus        9     1.18      0.20%              66              0.1
kvitals           9     7.32      1.22%             101              2.0
kvitals, 1m       9     7.32      1.22%              94              2.0

CPU milliseconds a cycle
  read: HTTP, senses     12.7
  parse and translate     2.8
  signals                21.1
  rules                   9.9
""",
    "tap": """
200 quiet requests, ms              p50       p99   added: p50     p99    samples
direct                           80.000    81.000     0.000     0.000       200
kvitals tap                      80.300    81.500     0.300     0.500       200
nginx                            80.200    81.400     0.200     0.400       200

chunks of 64 streams, ms            p50       p99   added: p50     p99    samples
direct                            0.100     1.000     0.000     0.000       200
kvitals tap                       0.200     1.500     0.100     0.500       200
nginx                             0.150     1.400     0.050     0.450       200
budgets: 0.300 ms of 1 at the median of a quiet request, 0.500 ms of 1 at p99 of a chunk: hold
""",
    "history": """
5665 series, 18720 ticks
after a day            72.0 MB on disk, 5.6 MB of it not sealed yet
beside Prometheus: 8100000 samples, 1.21 bytes each, Prometheus 3.66
10 kills: 1720 ticks had been shown, 0 of them lost
""",
    "fleet": """
269 queries (269 to judge), 18.7 MB; 59.0 s: 56.0 s waited, 3.00 s not, 2.71 s CPU here, 22.0 s there
ours: 2.71 s (budget 3 s); right
""",
    "triage": "cold 13.20 s, 2.10 of CPU\nrecording 1.50 s, 1.40 of CPU\nagent 1.10 s, 1.00 of CPU\n",
}
"""What the benchmarks print, in their own form; the numbers are of different runs."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_figures_are_read_off_what_benchmarks_print(name: str) -> None:
    for row in report.BENCHES[name].rows:
        found, said = report._told(row.ours, OUTPUTS[name])
        assert found is not None, row.what
        assert "{" not in said and (row.holds is None or row.holds(found)), (row.what, said)
        if row.beside[0]:
            assert report._told(row.beside, OUTPUTS[name])[0] is not None, row.what


def test_rows_that_were_not_measured_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\n{report.END}\nafter\n")
    first, second = (report.BENCHES[name].rows[0].what for name in ("scrape", "events"))
    report.write(page, {second: f"| {second} | b | old | - | yes | then |"})
    report.write(page, {first: f"| {first} | b | new | - | yes | now |"})
    rows = [one for one in page.read_text().splitlines() if one.startswith("| ") and one != report.HEAD]
    assert rows == [f"| {first} | b | new | - | yes | now |", f"| {second} | b | old | - | yes | then |"]
    assert page.read_text().startswith("before\n") and page.read_text().endswith("\nafter\n")
