"""Is it fast, is it full, what is wrong: the board that one opens first."""

from __future__ import annotations

from typing import Any

from dashboards.grafana import board, restarts
from dashboards.panels import Line, Question, Row, States, lay_out
from dashboards.queries import Queries
from rules.model import Severity

UID = "kvitals-overview"
TITLE = "kvitals / Overview"
DESCRIPTION = "Is it fast, is it full, what is wrong. For causes, proof and levers ask `kvitals triage`."
_ORDER: dict[Severity, int] = {"page": 0, "ticket": 1, "info": 2}


def build(queries: Queries) -> dict[str, Any]:
    rows = (_wrong(queries), _fast(queries), _load(queries), _kv(queries), _prefix(queries), _progress(queries))
    panels = lay_out((*rows, _gpus(queries), _telemetry(queries)), queries)
    seen = queries.family("sum by ($scope) (increase(kvitals_engine_restarts_total[$window])) > 0", "count")
    return board(UID, TITLE, DESCRIPTION, panels, [restarts(seen.expr)])


def _wrong(q: Queries) -> Row:
    rules = sorted((r for r in q.knowledge.rules.values() if r.core), key=lambda r: (_ORDER[r.severity], r.code))
    panel = States(
        "Which core rule holds, and on how many engines?",
        tuple(Line(q.firing(r.code), f"{r.code} {r.title}") for r in rules),
        words=((0, "no"),),
        severities=tuple(r.severity for r in rules),
        note="Prometheus cannot tell “no” from “cannot know”: `kvitals triage` can, and names the cause and the lever.",
        width=24,
        height=2 + len(rules),
    )
    return Row("What is wrong?", (panel,))


def _fast(q: Queries) -> Row:
    ttft = (
        Line(q.signal("ttft_p99_seconds"), "{{engine}} p99"),
        Line(q.signal("ttft_p50_seconds"), "{{engine}} median", "faint"),
        Line(q.signal("slo_ttft_seconds"), "{{engine}} objective", "objective"),
    )
    itl = (
        Line(q.signal("itl_p99_seconds"), "{{engine}} p99"),
        Line(q.signal("itl_p50_seconds"), "{{engine}} median", "faint"),
        Line(q.signal("slo_itl_seconds"), "{{engine}} objective", "objective"),
    )
    return Row(
        "Is it fast?",
        (
            Question("Do first tokens come within the objective?", ttft, by=("LAT01",), width=12),
            Question("Do the next tokens come within the objective?", itl, by=("LAT02",), width=12),
        ),
    )


def _load(q: Queries) -> Row:
    running = (
        Line(q.signal("running_avg"), "{{engine}} running"),
        Line(q.signal("slots"), "{{engine}} slots", "faint"),
    )
    waiting = (
        Line(q.signal("waiting_capacity_avg"), "{{engine}} for room"),
        Line(q.signal("waiting_deferred_avg"), "{{engine}} for something else"),
    )
    drain = (
        Line(q.signal("drain_seconds"), "{{engine}} to drain"),
        Line(q.signal("slo_ttft_seconds"), "{{engine}} objective", "objective"),
    )
    return Row(
        "How much is asked of it?",
        (
            Question("How many requests run, and how many could?", running),
            Question("Who waits, and for what?", waiting, judged=q.judged("KVC01", "waiting_capacity_avg", "waiting")),
            Question("Does the queue drain within the objective?", drain, by=("SCH10",)),
        ),
    )


def _kv(q: Queries) -> Row:
    return Row(
        "Is it full?",
        (
            Question(
                "How much of the KV cache do live requests pin?",
                (Line(q.signal("kv_usage_p90"), "{{engine}}"),),
                judged=q.judged("KVC01", "kv_usage_p90", "kv_high"),
                highest=1,
            ),
            Question(
                "How often is a running request thrown out?",
                (Line(q.signal("preemptions_per_request"), "{{engine}}"),),
                judged=q.judged("KVC09", "preemptions_per_request", "preemptions"),
                note="Per finished request.",
            ),
            Question(
                "How many cached blocks does a request push out?",
                (Line(q.signal("block_evictions_per_request"), "{{engine}}"),),
                judged=q.judged("KVC06", "block_evictions_per_request", "evictions"),
                note="vLLM has the numbers only with `--kv-cache-metrics`.",
            ),
        ),
    )


def _prefix(q: Queries) -> Row:
    by_source = q.family("sum by ($scope, source) (rate(kvitals_prompt_tokens_by_source_total[$window]))", "per_second")
    return Row(
        "Is work done twice?",
        (
            Question(
                "How much of the prompts is found in the cache?",
                (Line(q.signal("prefix_hit_ratio"), "{{engine}}"),),
                judged=q.judged("PFX01", "prefix_hit_ratio", "hits"),
                width=12,
                highest=1,
            ),
            Question(
                "Where does the prompts' KV come from?",
                (Line(by_source, "{{engine}} {{source}}"),),
                unit="suffix: tokens/s",
                width=12,
                stacked=True,
            ),
        ),
    )


def _progress(q: Queries) -> Row:
    generated = q.family("sum by ($scope) (rate(kvitals_generation_tokens_total[$window]))", "per_second")
    tokens = (
        Line(generated, "{{engine}} generated"),
        Line(q.signal("prompt_tokens_per_second"), "{{engine}} prompt", "faint"),
    )
    return Row(
        "Does it make progress?",
        (
            Question(
                "Does the engine step?",
                (Line(q.signal("steps_per_second"), "{{engine}}"),),
                unit="suffix: steps/s",
                note="Zero steps while requests run or wait is ENG01.",
            ),
            Question("How many tokens go in and come out?", tokens, unit="suffix: tokens/s"),
            Question("How many tokens does a step compute?", (Line(q.signal("step_tokens_avg"), "{{engine}}"),)),
        ),
    )


def _gpus(q: Queries) -> Row:
    note = "Needs the agent on the GPUs' node. Absent where engines share a GPU."
    return Row(
        "What do we get for it?",
        (
            Question(
                "How many tokens does an hour of a GPU give?",
                (Line(q.signal("tokens_per_gpu_hour"), "{{engine}}"),),
                note=f"Generated tokens at the present pace. {note}",
                width=12,
            ),
            Question(
                "How many GPUs has an engine to itself?",
                (Line(q.signal("gpus_per_engine"), "{{engine}}"),),
                note=f"A MIG instance is a part of one. {note}",
                width=12,
            ),
        ),
    )


def _telemetry(q: Queries) -> Row:
    state = q.family("max by ($scope, reason) (kvitals_target_state) == 1", "bool")
    age = q.family("max by ($scope) (kvitals_scrape_age_seconds)", "seconds")
    return Row(
        "Can we believe this?",
        (
            States(
                "Can every engine be read?",
                (Line(q.signal("target_up"), "{{engine}}"),),
                words=((0, "not readable"), (1, "readable")),
                judged=q.judged("TEL01", "target_up"),
                unit="bool_yes_no",
                width=6,
            ),
            States(
                "What did the last look at it come to?",
                (Line(state, "{{engine}} {{reason}}"),),
                words=((1, "now"),),
                unit="bool_yes_no",
                width=6,
            ),
            Question("How old is what we see?", (Line(age, "{{engine}}"),), width=6),
            Question(
                "Does it lack metrics that it should have?",
                (Line(q.signal("families_missing"), "{{engine}}"),),
                judged=q.judged("TEL02", "families_missing"),
                width=6,
            ),
        ),
    )
