"""The catalogues: every row is whole, names are found, figures that were checked elsewhere are these."""

from __future__ import annotations

import pytest

from kvitals.diagnoser.sizing.memory import kv_per_token
from kvitals.rules import catalogue
from kvitals.rules.catalogue import CatalogueError
from tests.support.loops import for_each


def test_every_price_is_of_a_gpu_and_says_when_and_whose() -> None:
    names = {gpu.name for gpu in catalogue.gpus()}
    for price in catalogue.prices():
        assert price.gpu in names and price.usd_per_hour > 0
        assert price.as_of and price.basis and price.source


def test_every_row_has_a_source() -> None:
    assert all(catalogue.sources(gpu) for gpu in catalogue.gpus())
    assert all(model.source for model in catalogue.models())


@for_each("model", catalogue.models(), ids=lambda model: model.name)
def test_a_model_is_whole(model: catalogue.Model) -> None:
    assert 0 < model.active <= model.parameters
    assert model.full + model.sliding <= model.layers
    assert bool(model.latent) != bool(model.kv_heads and model.head_dim)
    assert bool(model.window) == bool(model.sliding)
    assert not model.kv_heads or model.query_heads % model.kv_heads == 0


# Computed by hand from the public configurations.
@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("Meta-Llama-3.1-8B", 131_072),
        ("Llama-3.3-70B-Instruct", 327_680),
        ("DeepSeek-V3", 70_272),
        ("DeepSeek-V3.2", 70_272 + 61 * 132),
        ("Qwen3-32B", 262_144),
        ("Llama-2-7B", 524_288),
        ("OPT-13B", 819_200),
    ],
)
def test_kv_of_a_token_in_16_bit(name: str, per_token: int) -> None:
    assert kv_per_token(catalogue.model(name), 2.0) == per_token


def test_linear_attention_keeps_nothing_for_each_token() -> None:
    model = catalogue.model("Qwen3.5")
    assert kv_per_token(model, 2.0) == 2 * 15 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("H100 SXM", "H100 SXM5 80GB"),
        ("h200", "H200 SXM 141GB"),
        ("B200", "B200 SXM 180GB"),
        ("MI300X", "MI300X"),
        ("mi300x", "MI300X"),
    ],
)
def test_a_gpu_is_found_by_its_words(said: str, meant: str) -> None:
    assert catalogue.gpu(said).name == meant


def test_a_model_is_found_by_its_repository() -> None:
    assert catalogue.model("meta-llama/Llama-3.3-70B-Instruct").name == "Llama-3.3-70B-Instruct"


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(CatalogueError, match=r"which one.*H100 PCIe"):
        catalogue.gpu("H100")
    with pytest.raises(CatalogueError, match=r"not in the catalogue.*MI300X"):
        catalogue.gpu("H300")


def test_context_lengths_are_whole_lengths_of_a_configuration() -> None:
    known = [one.context for one in catalogue.models() if one.context]
    assert len(known) > 30 and all(2_048 <= tokens <= 10_485_760 and tokens % 256 == 0 for tokens in known)
