"""`kvitals review`: what its options come to, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.app.errors import UsageError
from kvitals.app.weekly_review import gpu_prices
from kvitals.config import Config, ConfigError, ReviewTable, build
from kvitals.ui.cli.main import main, parser
from kvitals.ui.cli.review import _prices


def given(table: ReviewTable, *options: str) -> tuple[float | None, dict[str, float], float]:
    args = parser("review").parse_args(["review", "--out", "x", *options])
    found = gpu_prices(Config(review=table), *_prices(args.price), args.gpus)
    return found.every, dict(found.by_name), found.gpus


TABLE = ReviewTable(usd_per_gpu_hour=2.0, prices={"H100": 3.0, "L4": 0.5}, gpus_per_engine=4.0)


def test_prices_are_the_configurations_and_options_come_before_them() -> None:
    assert given(TABLE) == (2.0, {"H100": 3.0, "L4": 0.5}, 4.0)
    assert given(TABLE, "--price", "H100=2.1", "--price", "1.5", "--gpus", "8") == (1.5, {"H100": 2.1, "L4": 0.5}, 8.0)
    assert given(ReviewTable()) == (None, {}, 1.0)


@pytest.mark.parametrize("option", ["free", "H100=", "=2", "-1", "H100=nan"])
def test_a_price_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="--price"):
        given(TABLE, f"--price={option}")


@pytest.mark.parametrize(
    "table", [{"usd_per_gpu_hour": -1}, {"prices": {"H100": -2}}, {"gpus_per_engine": 0}, {"gpu": 1}]
)
def test_a_table_that_can_not_be_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="review"):
        build({"review": table})


def test_without_a_history_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["review", str(tmp_path), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "--prometheus URL" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
