"""The blocks of prompts that an engine says it created, beside those that its events tell.

vLLM 0.32 tells created cache tokens in the answers to chats alone, so these are chats. Their text is drawn at random.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ..ports import HOST, Port
from ..requests.rig import Rig
from .chains import Chains

CLIENTS, CHATS, SYSTEMS = 3, 20, 4
ANSWER = 48
WORDS = ("north", "paper", "river", "seven", "table", "under", "voice", "winter", "yellow", "zebra", "cloud", "stone")


@dataclass(frozen=True)
class Created:
    """Counts of blocks; `told` is None where an answer did not tell."""

    chats: int
    told: int | None  # created cache tokens of all answers, in blocks
    missed: int  # whole blocks of prompts that were not found
    stored: int  # of prompts, by events, copies included
    decoded: int  # by events, that answers filled
    filled: int  # that answers can have filled, by their length

    @property
    def ok(self) -> bool:
        return self.chats > 0 and self.told == self.missed == self.stored and self.decoded == self.filled


async def created(rig: Rig, publish: Port, topic: str, block: int) -> Created:
    """Chats straight to the engine, and the events that they cause."""
    with Chains(f"tcp://{HOST}:{publish.number}", topic, block) as chains:
        answers = [one for some in await asyncio.gather(*(_client(rig, i) for i in range(CLIENTS))) for one in some]
        await asyncio.sleep(1.0)
    prompts: set[int] = set()
    told: int | None = 0
    missed = filled = 0
    for answer in answers:
        prompt, usage = answer["prompt_token_ids"], answer["usage"]
        details = usage["prompt_tokens_details"]
        prompts.update(chains.of(prompt))
        whole = len(prompt) // block
        missed += whole - details["cached_tokens"] // block
        filled += (len(prompt) + usage["completion_tokens"] - 1) // block - whole  # the last token is never computed
        mine = details.get("created_cache_tokens")
        told = None if told is None or mine is None else told + mine // block
    stored = [one for _, payload in chains.messages for one in _stored(payload)]
    of_prompts = sum(one in prompts for one in stored)
    return Created(len(answers), told, missed, of_prompts, len(stored) - of_prompts, filled)


async def _client(rig: Rig, number: int) -> list[dict[str, Any]]:
    draw = random.Random(f"chats/{number}")
    answers = []
    async with aiohttp.ClientSession() as session:
        for _ in range(CHATS):
            system = random.Random(f"system/{draw.randrange(SYSTEMS)}")
            body = {
                "model": "tiny",
                "messages": [
                    {"role": "system", "content": _text(system, 120)},
                    {"role": "user", "content": _text(draw, draw.randrange(5, 60))},
                ],
                "max_tokens": ANSWER,
                "min_tokens": ANSWER,
                "ignore_eos": True,
                "temperature": 0,
                "return_token_ids": True,
            }
            async with session.post(f"{rig.straight}/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                answers.append(await response.json())
    return answers


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def _stored(payload: bytes) -> list[int]:
    events = msgspec.msgpack.decode(payload)[1]
    return [one for event in events if event["type"] == "BlockStored" for one in event["block_hashes"]]
