"""A publisher as vLLM's is: PUB and ROUTER sockets, a buffer, both framings of replays."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Self

import zmq
from publishers import STORE, VLLM, payload

END = (-1).to_bytes(8, "big", signed=True)


def batch(number: int) -> bytes:
    """A step that stores one block."""
    return payload(VLLM["0.32"], [("BlockStored", {**STORE, "block_hashes": [number]})], ts=1000.0 + number)


class FakeEngine:
    """Its sockets live on a thread of their own. `publish` and `lose` count the sequence up."""

    def __init__(
        self,
        endpoint: str,
        *,
        connect: bool = False,
        topic: str = "kv",
        replay: str = "",
        keeps: int = 10_000,
        with_topic: bool = True,
        answers: bool = True,
    ) -> None:
        self._endpoint, self._connect, self._topic = endpoint, connect, topic.encode()
        self._replay, self._keeps, self._with_topic, self._answers = replay, keeps, with_topic, answers
        self._commands: queue.Queue[tuple[bool, bytes]] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.asked: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def publish(self, *payloads: bytes) -> None:
        for one in payloads:
            self._commands.put((True, one))

    def lose(self, *payloads: bytes) -> None:
        """These are in the buffer and are never sent."""
        for one in payloads:
            self._commands.put((False, one))

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.PUB) as pub, context.socket(zmq.ROUTER) as router:
            pub.setsockopt(zmq.LINGER, 0)
            router.setsockopt(zmq.LINGER, 0)
            (pub.connect if self._connect else pub.bind)(self._endpoint)
            if self._replay:
                router.bind(self._replay)
            self._ready.set()
            sequence, buffer = 0, list[tuple[int, bytes]]()
            while not self._stop.is_set():
                if self._replay and router.poll(0):
                    self._serve(router, buffer)
                try:
                    is_sent, text = self._commands.get(timeout=0.01)
                except queue.Empty:
                    continue
                if is_sent:
                    pub.send_multipart((self._topic, sequence.to_bytes(8, "big"), text))
                buffer = [*buffer, (sequence, text)][-self._keeps :]
                sequence += 1

    def _serve(self, router: zmq.Socket[bytes], buffer: list[tuple[int, bytes]]) -> None:
        client, empty, start = router.recv_multipart()
        assert empty == b""
        self.asked.append(int.from_bytes(start, "big"))
        if not self._answers:
            return
        topic = [self._topic] if self._with_topic else []
        for sequence, text in buffer:
            if sequence >= self.asked[-1]:
                router.send_multipart([client, b"", *topic, sequence.to_bytes(8, "big"), text])
        end = [b""] if self._with_topic else []
        router.send_multipart([client, b"", *end, END, b""])


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that another thread does."""
    waited = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        waited.wait(0.02)
    raise AssertionError(f"not within {seconds:g} s")
