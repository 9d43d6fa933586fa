"""Triage documents as the diagnoser makes them, for tests of whatever renders them."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from kvitals.rules.finding import (
    Coverage,
    DocumentSource,
    DocumentWindow,
    Entity,
    Evidence,
    EvidenceLine,
    Finding,
    LeverAdvice,
    LeverSetting,
    Measure,
    MissingData,
    Point,
    RuledOut,
    SloInForce,
    Triage,
    Unknown,
)

END = 1_767_189_800.0
LABELS = {"cluster": "lab", "node": "gpu-node-7", "engine": "127.0.0.1:8000/0"}
ENGINE = Entity(kind="engine", labels=LABELS, title="127.0.0.1:8000/0")

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](https://evil.example/a.png)",
    "# heading",
    "1. list",
    "- item",
    "> quote",
    "| a | b |\n|---|---|",
    "$x^2$ and $$y$$",
    ":red[red] :material/home: :smile:",
    "```\ncode\n```",
    "**bold** _it_ ~~no~~ `tick`",
    "&lt;b&gt; \\ backslash",
    "https://evil.example/ www.evil.example me@evil.example",
    "a\n\n# b",
    "\u202etxt.exe",
]


def line(start: float, end: float, wave: float = 0.0, **labels: str) -> EvidenceLine:
    """Sixty seconds from one value to another, with a wave on it."""
    values = [start + (end - start) * i / 29 + wave * math.sin(i / 2.1) for i in range(30)]
    return EvidenceLine(LABELS | labels, [Point(END - 58 + 2 * i, v) for i, v in enumerate(values)])


def evidence(title: str, query: str, unit: str, text: str, *lines: EvidenceLine) -> Evidence:
    return Evidence(title=title, query=query, unit=unit, text=text, lines=list(lines))


def lever(name: str, title: str, why: str, setting: LeverSetting | None, note: str = "") -> LeverAdvice:
    return LeverAdvice(
        lever=name,
        title=title,
        why=why,
        does="More of the context of live requests fits in the memory that the engine has.",
        does_not_fix="A client that never reads its stream, or one request that is larger than the pool.",
        risk="Half the bits: check long-context answers on your own evaluation first.",
        cost="low",
        setting=setting,
        setting_note=note,
        references=["vLLM documentation: Quantized KV Cache", "vllm-project/vllm#37307"],
    )


def finding(code: str, name: str, title: str, conclusion: str, **changes: Any) -> Finding:
    """A fired cause on ENGINE; `changes` make it another one."""
    base = Finding(
        id=f"{code.lower()}0a1b2c3d",
        episode=f"{code.lower()}0a1b2c3d-{END - 40:.0f}",
        code=code,
        name=name,
        title=title,
        kind="cause",
        severity="page",
        entity=ENGINE,
        outcome="fired",
        reason="",
        since=END - 40,
        since_at_least=False,
        confidence=0.9,
        confidence_words="high",
        confidence_why=["every signal of the rule was there", "running per slot agrees"],
        conclusion=conclusion,
        measures=[Measure("kv_usage_p90", 0.97, "ratio", "97 %", "KV usage p90")],
        evidence=[],
        explains=[],
        explained_by=[],
        explained=[f"{explained.lower()}0a1b2c3d" for explained in changes.get("explains", ())],
        ruled_out=[],
        unknowns=[],
        levers=[],
        next_check="after a change, watch KV usage for a few minutes: kvitals:kv_usage_p90",
    )
    return replace(base, **changes)


def kv_full() -> Finding:
    """KVC01 with its proof and levers, explaining LAT01 and KVC09."""
    fp8 = LeverSetting("--kv-cache-dtype", "auto", "fp8", True, "needs a GPU with FP8")
    share = LeverSetting("--gpu-memory-utilization", "0.85", "0.92", True, "")
    seqs = LeverSetting("--max-num-seqs", "256", "128", True, "")
    return finding(
        "KVC01",
        "kv-near-ceiling",
        "KV cache full: requests wait for blocks",
        "Live requests pin 97 % of the KV blocks (p90), 14.2 requests wait for room "
        "and there are 0.31 preemptions per finished request.",
        explains=["LAT01", "KVC09"],
        evidence=[
            evidence(
                "KV usage p90",
                "kvitals:kv_usage_p90",
                "ratio",
                "97 %",
                line(0.62, 0.97, 0.01),
            ),
            evidence(
                "Requests waiting for capacity",
                "kvitals:waiting_capacity_avg",
                "requests",
                "14.2 requests",
                line(0, 15, 1.2),
            ),
            evidence(
                "Preemptions per finished request",
                "kvitals:preemptions_per_request",
                "ratio",
                "31 %",
                line(0, 0.31, 0.02),
            ),
            evidence("Slots in use", "kvitals:running_per_slot", "ratio", "22 %", line(0.25, 0.22, 0.015)),
        ],
        levers=[
            lever(
                "kv-quantization",
                "Keep keys and values in 8 bits",
                "FP8 doubles what fits in the blocks that are now 97 % pinned.",
                fp8,
            ),
            lever(
                "raise-kv-budget",
                "Give the KV cache more memory",
                "More blocks let the 14.2 waiting requests in.",
                share,
            ),
            lever(
                "tenant-rate-limit",
                "Limit the tenant that holds the blocks",
                "A limit at the gateway frees them for the others.",
                None,
                "not an engine flag: it is applied outside of the engine",
            ),
            lever(
                "lower-max-num-seqs",
                "Admit fewer requests at once",
                "It ends the 0.31 preemptions per request.",
                seqs,
            ),
        ],
        unknowns=[Unknown("slots", "no endpoint tells it", "give the command line with --engine-args")],
    )


def hostile(name: str, number: int) -> Finding:
    """A cause in which everything that strangers name is `name`."""
    entity = Entity(kind="engine", labels={"engine": name}, title=name)
    return replace(kv_full(), id=f"hostile{number}", title=name, conclusion=name, entity=entity, name=name)


def ttft_breach() -> Finding:
    return finding(
        "LAT01",
        "ttft-slo-breach",
        "TTFT p99 above objective",
        "99 % of requests get their first token within 8.4 s; the objective is 2 s (median 3.1 s).",
        kind="symptom",
        explained_by=["KVC01"],
        evidence=[
            evidence(
                "TTFT p99",
                "kvitals:ttft_p99_seconds",
                "seconds",
                "8.4 s",
                line(0.9, 8.4, 0.3),
            ),
            evidence(
                "TTFT median",
                "kvitals:ttft_p50_seconds",
                "seconds",
                "3.1 s",
                line(0.2, 3.1, 0.1),
            ),
        ],
    )


def thrash() -> Finding:
    seqs = LeverSetting("--max-num-seqs", "256", "128", True, "")
    return finding(
        "KVC09",
        "preemption-thrash",
        "Running requests are preempted and recomputed",
        "There are 0.31 preemptions per finished request with 97 % of the KV blocks pinned.",
        severity="ticket",
        explained_by=["KVC01"],
        evidence=[
            evidence(
                "Preemptions per finished request",
                "kvitals:preemptions_per_request",
                "ratio",
                "31 %",
                line(0, 0.31, 0.02),
            )
        ],
        levers=[
            lever(
                "lower-max-num-seqs",
                "Admit fewer requests at once",
                "It leaves room for running ones to grow.",
                seqs,
            )
        ],
    )


def missing_metrics() -> Finding:
    return finding(
        "TEL02",
        "metric-renamed-or-absent",
        "Metrics expected from this engine version are missing",
        "2 families that this version exports by default are absent; what rests on them is unknown.",
        kind="telemetry",
        severity="ticket",
        confidence_words="",
        evidence=[
            evidence(
                "Missing",
                "kvitals_family_missing",
                "count",
                "1",
                line(1, 1, family="kvitals_step_tokens"),
                line(1, 1, family="kvitals_preemptions_total"),
            )
        ],
    )


def undecided(code: str, title: str, reason: str) -> Finding:
    return finding(
        code,
        "undecided",
        title,
        "",
        outcome="unknown",
        reason=reason,
        since=None,
        confidence=0.0,
        confidence_words="",
        confidence_why=[],
        unknowns=[Unknown("kv events", "not switched on")],
        next_check="",
    )


def document(**changes: Any) -> Triage:
    """A healthy engine; `changes` make it another document."""
    base = Triage(
        source=DocumentSource("capture", "few-slots.kvcap"),
        window=DocumentWindow(END - 60, END, 60.0, False),
        slo=[SloInForce("ttft_p99", 2.0, "default"), SloInForce("itl_p99", 0.2, "default")],
        healthy=True,
        verdict="No trouble found: 7 core checks clear or not applicable.",
        causes=[],
        symptoms=[],
        telemetry=[],
        notes=[],
        ruled_out=[],
        unknown=[],
        muted=[],
        coverage=Coverage(
            22,
            0,
            18,
            2,
            2,
            [
                {
                    "engine": "127.0.0.1:8000/0",
                    "system": "vllm",
                    "version": "0.33.0",
                    "model": "Qwen/Qwen3-32B",
                }
            ],
        ),
    )
    return replace(base, **changes)


def unhealthy() -> Triage:
    """The KV cache is full: one cause, two findings that it explains, and one of everything else."""
    return document(
        healthy=False,
        verdict="KV cache full: requests wait for blocks.",
        causes=[kv_full(), thrash()],
        symptoms=[ttft_breach()],
        telemetry=[missing_metrics()],
        notes=[
            finding(
                "TEL10",
                "missing-telemetry-flag",
                "Telemetry flags are off",
                "2 flags are off.",
                kind="note",
            )
        ],
        ruled_out=[
            RuledOut(
                "SCH01",
                "Requests wait for slots while the KV cache has room",
                ENGINE.title,
                "KV usage p90 is 97 %, not below 50 %",
            ),
            RuledOut("PFX02", "Prefix caching is off", ENGINE.title, "prefix caching: yes"),
        ],
        unknown=[
            undecided(
                "KVC06",
                "KV cache too small for the reused prefixes",
                "block evictions per request: no such family",
            )
        ],
        muted=[
            finding(
                "SCH12",
                "waiting-deferred",
                "Requests are deferred for something other than capacity",
                "3 wait.",
                muted="adapter roll-out until Friday",
            )
        ],
        coverage=replace(document().coverage, fired=5, clear=14),
        lacking=[MissingData("a tracked cache", "--kv-cache-metrics", ["KVC06"])],
    )


def could_not_tell() -> Triage:
    return document(
        healthy=None,
        verdict="Unknown: 2 of 7 core checks could not be decided.",
        window=DocumentWindow(END - 12, END, 12.0, True),
        source=DocumentSource("live", "http://127.0.0.1:8000"),
        unknown=[
            undecided(
                "LAT01",
                "TTFT p99 above objective",
                "ttft p99: only 7 of 20 requests in 12 s",
            ),
            undecided(
                "LAT02",
                "ITL p99 above objective",
                "itl p99: only 44 of 100 output gaps in 12 s",
            ),
        ],
        lacking=[MissingData("requests to judge by", "a longer window, or more traffic", ["LAT01", "LAT02"])],
    )
