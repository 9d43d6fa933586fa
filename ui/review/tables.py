"""The numbers of a review as tables, to plot again: CSV always, Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvitals.diagnoser.review.result import Review
from kvitals.series.csv_cells import cell

Row = Mapping[str, Any]


def tables(review: Review) -> dict[str, list[Row]]:
    """By the name of the file; a row is a column's name -> value, the same columns in each row of a table."""
    document = msgspec.to_builtins(review)
    return {
        "steps": list(_steps(review)),
        "days": [_flat(one) for one in document["days"]],
        "groups": [_flat(one) for one in document["groups"]],
        "parts": document["ledger"],
        "factors": document["compared"]["factors"],
        "weeks": document["compared"]["weeks"],
        "tenants": document["chargeback"]["rows"],
        "incidents": [_incident(one) for one in document["incidents"]["rows"]],
        "levers": [{**one, "codes": " ".join(one["codes"])} for one in document["levers"]],
        "changes": document["happened"],
        "prices": document["prices"],
    }


def write_tables(review: Review, folder: Path) -> list[Path]:
    """Those that have rows; returns what was written."""
    written = []
    parquet = has_parquet()
    for name, rows in tables(review).items():
        if rows:
            written.append(_csv(rows, folder / f"{name}.csv"))
            if parquet:
                written.append(_parquet(rows, folder / f"{name}.parquet"))
    return written


def has_parquet() -> bool:
    """Whether what writes it is installed; it comes with kvitals[ui]."""
    return importlib.util.find_spec("pyarrow") is not None


def _steps(review: Review) -> Iterator[Row]:
    one = review.courses
    for i, end in enumerate(one.ends):
        yield {
            "end": end,
            "gpu_hours": one.gpu_hours[i],
            "output_tokens": one.output_tokens[i],
            "tokens_per_gpu_hour": one.tokens_per_gpu_hour[i],
            "ttft_within": one.ttft_within[i],
            **{f"gpu_hours_{name}": part[i] for name, part in one.parts.items()},
        }


def _flat(row: Row) -> Row:
    """What is within `work` beside the rest."""
    return {**{name: value for name, value in row.items() if name != "work"}, **row["work"]}


def _incident(row: Row) -> Row:
    """Lists as text; times are in the JSON one by one."""
    left = {name: value for name, value in row.items() if name not in ("labels", "spans", "levers")}
    return {
        **left,
        "explains": " ".join(row["explains"]),
        "explained_by": " ".join(row["explained_by"]),
        "first": row["spans"][0][0],
        "last": row["spans"][-1][1],
        "levers": " ".join(one["lever"] for one in row["levers"]),
    }


def _csv(rows: Sequence[Row], path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {name: cell(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
        )
    return path


def _parquet(rows: Sequence[Row], path: Path) -> Path:
    import pyarrow as arrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    parquet.write_table(arrow.table(columns), path, compression="zstd")
    return path
