"""Which blocks a prompt is made of, learned from the token ids in an engine's own events. Only the lab looks at those.

with Chains("tcp://127.0.0.1:8203", "kv", block=32) as chains:
    ...                                  # requests are sent
chains.of(prompt, salt="")               # the engine's hashes, first block first
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import zmq

Link = tuple[Any, tuple[int, ...]]
"""The block before, or the salt at the start of a prefix, and the tokens of the block."""


class Frames:
    """Subscribes to one publisher for as long as the block lasts, and keeps its messages as they come."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.messages: list[tuple[int, bytes]] = []  # sequence and payload
        self._endpoint, self._topic = endpoint, topic.encode()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def take(self, sequence: int, payload: bytes) -> None:
        """One message came."""
        self.messages.append((sequence, payload))

    def _listen(self) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.subscribe(self._topic)
            socket.connect(self._endpoint)
            while not self._stop.is_set():
                if socket.poll(100):
                    _, sequence, payload = socket.recv_multipart()
                    self.take(int.from_bytes(sequence, "big"), payload)


class Chains(Frames):
    """Learns from them which tokens are in which block."""

    def __init__(self, endpoint: str, topic: str, block: int) -> None:
        super().__init__(endpoint, topic)
        self.block = block
        self._links: dict[Link, int] = {}

    def of(self, prompt: Sequence[int], salt: str = "") -> list[int]:
        """The hashes of a prompt's full blocks, as far as they were ever stored."""
        found: list[int] = []
        before: Any = f"salt {salt}"
        for start in range(0, len(prompt) - self.block + 1, self.block):
            link = self._links.get((before, tuple(prompt[start : start + self.block])))
            if link is None:
                break
            found.append(link)
            before = link
        return found

    def take(self, sequence: int, payload: bytes) -> None:
        super().take(sequence, payload)
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] != "BlockStored" or not event.get("block_size"):
                continue
            size, tokens = event["block_size"], event["token_ids"]
            extra = (event.get("extra_keys") or [None])[0] or []
            salts = [one for one in extra if isinstance(one, str)]
            before: Any = event["parent_block_hash"]
            if before is None:
                before = f"salt {salts[0] if salts else ''}"
            for number, block in enumerate(event["block_hashes"]):
                self._links[before, tuple(tokens[number * size : (number + 1) * size])] = block
                before = block
