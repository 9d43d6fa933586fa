"""The bound and the estimate against what others published: rules/kv_published.csv and published.csv."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from kvitals.diagnoser.sizing import estimate, memory, roofline
from kvitals.diagnoser.sizing.estimate import REACHED
from kvitals.diagnoser.sizing.memory import GpuLayout, Precisions, flops, precision
from kvitals.diagnoser.sizing.published_caches import PublishedCache, compare_cache, published_caches
from kvitals.diagnoser.sizing.roofline import Machine
from kvitals.rules import catalogue
from tests.support.loops import for_each

CACHES = published_caches()
LLAMA_2_TOKENS = 294.45
"""Mean tokens of a prompt and of an answer of MLPerf's data set for Llama 2 70B."""


def test_there_are_15_published_caches_with_a_source_of_several_models_gpus_and_degrees() -> None:
    assert len(CACHES) >= 15 and all(one.source for one in CACHES)
    assert len({one.model for one in CACHES}) >= 8
    assert len({one.gpu for one in CACHES}) >= 4
    assert len({one.tensor for one in CACHES}) >= 3


@for_each("of", CACHES, ids=lambda of: f"{of.model} {of.gpu} {of.version} {of.kv}")
def test_no_engine_has_more_for_kv_than_the_bound(of: PublishedCache) -> None:
    assert of.bytes <= compare_cache(of).bound


def test_the_estimate_holds_13_of_15() -> None:
    inside = [compare_cache(of).room.holds(of.bytes) for of in CACHES]
    assert sum(inside) >= len(CACHES) * 13 / 15


@for_each("of", [one for one in CACHES if one.gib is not None and one.kv_tokens], ids=lambda of: f"{of.model} {of.gpu}")
def test_bytes_of_a_token_are_what_engines_divide_by(of: PublishedCache) -> None:
    assert of.kv_tokens is not None
    model, element = catalogue.model(of.model), precision(of.kv).bytes
    each = memory.kv_on_gpu(model, 1000, element, of.tensor) / 1000
    assert of.bytes / of.kv_tokens == pytest.approx(each, rel=0.012)


LLAMA_2_70B = replace(
    catalogue.model("Meta-Llama-3.1-70B"), name="Llama-2-70B", vocab=32_000, parameters=68.98e9, active=68.98e9
)


def rates() -> list[dict[str, str]]:
    """MLPerf's results of Llama 2 70B, in output tokens per GPU-hour."""
    with (catalogue.FOLDER / "published.csv").open(newline="", encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row["model"] == "llama2-70b-99"]


@for_each("row", rates(), ids=lambda row: f"{row['gpu']} {row['scenario']}")
def test_no_benchmark_makes_more_tokens_than_the_bound(row: dict[str, str]) -> None:
    gpu = catalogue.gpu(row["gpu"])
    form = precision("nvfp4" if gpu.flops_4 else "fp8")
    one = Machine(LLAMA_2_70B, gpu, GpuLayout(1), Precisions(form.bytes, 1.0), flops(gpu, form))
    prefill = roofline.prefill_seconds(one, LLAMA_2_TOKENS)
    decode = 2 * (LLAMA_2_70B.active - LLAMA_2_70B.tables / 2) * LLAMA_2_TOKENS / one.flops
    bound = LLAMA_2_TOKENS / (prefill + decode) * 3600
    assert float(row["most"]) <= bound
    if row["scenario"] == "Offline":
        assert REACHED[0].compute <= float(row["middle"]) / bound <= REACHED[2].compute


@pytest.mark.parametrize(("batch", "share"), [(1, 1 / 32), (8, 1 - (31 / 32) ** 8), (10_000, 1.0)])
def test_experts_read_are_those_that_a_batch_takes(batch: int, share: float) -> None:
    """gpt-oss and DeepSeek read dense weights once, and of the experts 1 - (1 - k/E)^B."""
    model = catalogue.model("DeepSeek-V3")
    one = Machine(model, catalogue.gpu("H200"), GpuLayout(8), Precisions(1.0, 2.0), 1.979e15)
    dense = model.parameters - model.routed - model.vocab * model.hidden
    assert roofline.experts_used(model, batch) == pytest.approx(share)
    assert roofline.weights_read(one, batch) == pytest.approx(dense + model.routed * share)
    assert model.routed == pytest.approx(58 * 256 * 3 * 7168 * 2048, rel=0.01)


def test_a_token_of_sparse_latent_attention_in_fp8_takes_656_bytes_a_layer() -> None:
    model = catalogue.model("DeepSeek-V3.2")
    found = memory.kv_precision(model, "fp8")
    assert (found.name, memory.kv_layer_token(model, found.bytes)) == ("fp8_ds_mla", 656)
    with pytest.raises(memory.PrecisionError, match="needs sparse latent attention"):
        memory.kv_precision(catalogue.model("Qwen3-8B"), "fp8_ds_mla")


def test_replicas_of_attention_hold_more_latent_kv_and_share_the_experts() -> None:
    model, gpu, precisions = catalogue.model("DeepSeek-V3"), catalogue.gpu("H200"), Precisions(1.0, 2.0)
    together, apart = GpuLayout(8), GpuLayout(1, 1, 8)
    settings = estimate.default_settings(gpu)
    rooms = [estimate.kv_room(model, gpu, one, precisions, settings) for one in (together, apart)]
    held = [
        memory.sequences(model, room.likely, 8192, 2.0, one) for room, one in zip(rooms, (together, apart), strict=True)
    ]
    assert held[1] > 3 * held[0]
    dense = model.parameters - model.routed
    assert memory.weights_on_gpu(model, apart, precisions) == pytest.approx(dense + model.routed / 8)
    assert str(apart) == "TP1 x DP8 with EP8"
