"""A load as lines of JSON, in kvitals' own format and in those of other load generators."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal, get_args

import msgspec

from kvitals.app.load.extracted_load import ExtractedLoad, LoadRequest
from kvitals.app.load.recorded_incident import GateFigures

LoadFormat = Literal["kvitals", "mooncake", "aiperf", "vllm"]
FORMATS: tuple[LoadFormat, ...] = get_args(LoadFormat)
VERSION = 1
MAX_BYTES = 4 << 30
"""Of what is written."""

_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand"
    " part place case week company system program question work government number night point home water room mother"
    " area money story fact month lot right study book eye job word business issue side kind head house service friend"
    " father power hour game line end member law car city name"
)
"""Common words, each of one token in most vocabularies."""
_WORDS = _VOCABULARY.split()


def load_lines(load: ExtractedLoad, form: LoadFormat, figures: GateFigures | None = None) -> Iterator[bytes]:
    """The lines, without their ends. figures: what the recording reports; kvitals' own format states it."""
    if form == "kvitals":
        yield msgspec.json.encode(_header(load, figures))
    for request in load.requests:
        yield msgspec.json.encode(_line(load, request, form))


def mean_rate(load: ExtractedLoad) -> float:
    """Requests per second over the load; 0 where all arrive at once."""
    return (len(load.requests) - 1) / load.seconds if load.seconds else 0.0


def _header(load: ExtractedLoad, figures: GateFigures | None) -> dict[str, Any]:
    return {
        "kvitals_load": VERSION,
        "source": load.source,
        "requests": len(load.requests),
        "seconds": load.seconds,
        "block_tokens": load.block_tokens,
        "prefixes": load.prefixes,
        "with_prefix": round(load.with_prefix, 4),
        "left_out": load.left_out,
        "figures": figures,
    }


def _line(load: ExtractedLoad, request: LoadRequest, form: LoadFormat) -> dict[str, Any]:
    if form == "kvitals":
        always = ("at", "prompt_tokens", "output_tokens", "blocks")
        return {key: value for key, value in asdict(request).items() if key in always or value}
    if form == "vllm":
        return {"prompt": synthetic_text(load, request), "output_tokens": request.output_tokens}
    return {
        "timestamp": round(request.at * 1000),
        "input_length": request.prompt_tokens,
        "output_length": request.output_tokens,
        "hash_ids": request.blocks,
    }


def synthetic_text(load: ExtractedLoad, request: LoadRequest) -> str:
    """As many words as the prompt has tokens; equal blocks are equal words, and the words of a block follow from its
    number alone."""
    words: list[str] = []
    for block in request.blocks:
        count = min(load.block_tokens, request.prompt_tokens - len(words))
        digest = hashlib.shake_128(block.to_bytes(8, "little")).digest(count)
        words += [_WORDS[byte % len(_WORDS)] for byte in digest]
    return " ".join(words)
