"""What the gate compares: the load of an incident, and what `triage` answers at the end of its recording."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from kvitals.agent.requests.store import MAX_RECORDS
from kvitals.app.load.extracted_load import (
    BrokenLoadError,
    ExtractedLoad,
    LoadRequest,
    PrefixSource,
    load_of_node,
    refuse_losses,
)
from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.recording import judge_recording, with_window
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Finding
from kvitals.series.files import read_regular
from kvitals.series.promql import evaluate_range, parse
from kvitals.series.undecodable import UNDECODABLE

MARGIN_SECONDS = 60.0
MAX_LOAD_BYTES = 64 << 20
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
_BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Block = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
T = TypeVar("T")
HIT_TOKENS, QUERY_TOKENS = "kvitals_prefix_hit_tokens_total", "kvitals_prefix_query_tokens_total"


class GateCause(msgspec.Struct, frozen=True):
    """The first cause of a triage document."""

    code: str
    title: str


class GateFigures(msgspec.Struct, frozen=True):
    """What a recording reports. healthy: as in the triage document. causes: of the document, the first one first.
    hit_rate: cached tokens of all prompt tokens. ttft_p50: seconds. None: the engine does not report it."""

    healthy: bool | None
    causes: list[GateCause] = []
    hit_rate: _Share | None = None
    ttft_p50: _Seconds | None = None

    @property
    def first(self) -> str:
        """The code of the first cause; empty where there is none."""
        return self.causes[0].code if self.causes else ""


@dataclass(frozen=True)
class RecordedIncident:
    """An incident that can be played. figures None: the file is a load that states none."""

    name: str
    load: ExtractedLoad
    figures: GateFigures | None


def judge_incident(path: Path, setup: Setup) -> RecordedIncident:
    """The load and the verdict of a recording. Raises NoLoadError, also where part of the recording cannot be read: its
    load is another one. Raises CaptureError, RecordingError, ConfigError."""
    pipeline, figures = judged_figures(path, setup)
    refuse_losses(path.name, pipeline.losses)
    return RecordedIncident(path.name, load_of_node(path.name, pipeline.node), figures)


def judged_figures(path: Path, setup: Setup) -> tuple[Pipeline, GateFigures]:
    """The pipeline at the end of a recording, and its figures over the whole recording. Raises CaptureError,
    RecordingError."""
    first, last = span_of(path)
    verdict = judge_recording(path, with_window(setup, last - first + MARGIN_SECONDS))
    document = verdict.document
    span = f"{max(round(last - first), 1)}s"
    hits = f"sum(increase({HIT_TOKENS}[{span}])) / sum(increase({QUERY_TOKENS}[{span}]))"
    ttft = f"histogram_quantile(0.5, sum by (le) (increase(kvitals_ttft_seconds_bucket[{span}])))"
    causes = [_cause(finding) for finding in document.causes]
    ask = [_number(verdict.pipeline, query, last) for query in (hits, ttft)]
    return verdict.pipeline, GateFigures(document.healthy, causes, *ask)


def read_load(path: Path) -> RecordedIncident:
    """A load that `kvitals gate extract` wrote in kvitals' own format. Raises BrokenLoadError."""
    try:
        lines = read_regular(path, MAX_LOAD_BYTES).splitlines()
    except OSError as error:
        raise BrokenLoadError(f"{path}: cannot be read: {error.strerror}. {_WRITE_ONE}") from error
    if not lines or not 0 < len(lines) - 1 <= MAX_RECORDS:
        raise BrokenLoadError(
            f"{path}: {len(lines):,} lines; a load has a header and from 1 to {MAX_RECORDS:,} requests. {_WRITE_ONE}"
        )
    header = _decoded(lines[0], _Header, f"{path}:1")
    if header.requests not in (None, len(lines) - 1):
        raise BrokenLoadError(
            f"{path}: {len(lines) - 1:,} requests, and its first line states {header.requests:,}. {_WRITE_ONE}"
        )
    requests = []
    for number, line in enumerate(lines[1:], 2):
        row = _decoded(line, _Row, f"{path}:{number}")
        needed = -(-row.prompt_tokens // header.block_tokens)
        if len(row.blocks) != needed:
            raise BrokenLoadError(
                f"{path}:{number}: {len(row.blocks)} blocks; {row.prompt_tokens} prompt tokens need {needed} blocks of "
                f"{header.block_tokens} tokens. {_WRITE_ONE}"
            )
        requests.append(LoadRequest(**msgspec.structs.asdict(row)))
    requests.sort(key=lambda request: request.at)
    load = ExtractedLoad(
        header.source, requests, header.block_tokens, header.prefixes, header.with_prefix, header.left_out, False
    )
    return RecordedIncident(path.name, load, header.figures)


_WRITE_ONE = "Write a load with: kvitals gate extract FILE.kvcap --out FILE"


def _decoded(line: bytes, type_: type[T], where: str) -> T:
    """A line of a load. Raises BrokenLoadError."""
    try:
        return msgspec.json.decode(line, type=type_)
    except UNDECODABLE as error:
        raise BrokenLoadError(f"{where}: not a line of a kvitals load: {error}. {_WRITE_ONE}") from error


class _Header(msgspec.Struct):
    kvitals_load: Literal[1]
    source: str
    block_tokens: _BlockTokens
    prefixes: PrefixSource
    with_prefix: _Share = 0.0
    left_out: _Count = 0
    requests: _Count | None = None
    figures: GateFigures | None = None


class _Row(msgspec.Struct):
    at: _Seconds
    prompt_tokens: _Tokens
    output_tokens: _Tokens
    blocks: tuple[_Block, ...]
    tenant: str = ""
    session: str = ""
    adapter: str = ""
    abort_after: _Seconds | None = None
    estimated: bool = False


def _cause(finding: Finding) -> GateCause:
    return GateCause(finding.code, finding.title)


def _number(pipeline: Pipeline, query: str, at: float) -> float | None:
    """The value of a query at a moment; None where the engine does not report it."""
    series = evaluate_range(parse(query), pipeline.node.window, at, at, 1.0)
    value = float(series[0].values[-1]) if series else None
    return value if value is not None and math.isfinite(value) else None
