"""Threads for reads that can hang: one daemon thread per collector, never the shared executor.

A read of /proc, of NVML or of a network file system can wait in the kernel for ever, and nothing ends such a call. In a
shared pool a few of them take all threads, and the interpreter waits for them at exit. So each collector has one thread
of its own, a daemon, and whoever waits for it waits up to a deadline.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from aiohttp.abc import AbstractResolver, ResolveResult

T = TypeVar("T")

IDLE_SECONDS = 60.0
"""A thread without work ends after this time; the next call starts another."""

RESOLVE_SECONDS = 5.0
MAX_RESOLVING = 64
"""Host names that are looked up at the same time, each in a thread of its own."""


class WorkerHungError(TimeoutError):
    """The thread did not answer within the deadline, or has not come back from an earlier call."""


class Worker:
    """One daemon thread that runs calls one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: Future[Any] | None = None  # of the call that missed its deadline
        self._late_since = 0.0

    @property
    def hung_seconds(self) -> float:
        """Seconds since the call began that missed its deadline and still runs; 0 where there is none."""
        return time.monotonic() - self._late_since if self._late is not None and not self._late.done() else 0.0

    async def run(self, work: Callable[[], T], deadline: float | None = None) -> T:
        """Run `work` in the thread and return its result. `deadline` is in seconds; None: the caller has one.

        Raises WorkerHungError where the thread does not answer in time, and at once as long as an earlier call that
        missed its deadline still runs. Raises what `work` raises, and RuntimeError where no thread can be started.
        """
        if self.hung_seconds:
            raise WorkerHungError(f"{self._name} has not answered for {self.hung_seconds:.0f} s")
        done: Future[T] = Future()
        self._submit(work, done)
        waiting, begun = asyncio.wrap_future(done), time.monotonic()
        try:
            await asyncio.wait({waiting}, timeout=deadline)
            if waiting.done():
                return waiting.result()
        finally:
            if not waiting.done():  # late, or the caller was cancelled
                if not done.cancel():  # a call that had not begun is withdrawn
                    self._late, self._late_since = done, begun
                waiting.cancel()
            del waiting, done  # an exception keeps this frame: with the future that keeps the exception it is a cycle
        raise WorkerHungError(f"{self._name} did not answer within {deadline:g} s")

    def post(self, work: Callable[[], object]) -> None:
        """Run `work` in the thread after the calls before it. Nobody waits for it, and what it raises is dropped."""
        self._submit(work, Future())

    def _submit(self, work: Callable[[], Any], done: Future[Any]) -> None:
        with self._lock:
            self._jobs.put((work, done))
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=f"kvitals-{self._name}", daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        while True:
            try:
                work, done = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
            del work, done  # not kept until the next call comes


class ThreadedResolver(AbstractResolver):
    """Looks host names up, each in a daemon thread of its own, so that a name server that hangs stops no other."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, int], Worker] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises OSError."""
        key = host, int(family)
        if key not in self._workers and len(self._workers) >= MAX_RESOLVING:
            self._workers = {one: worker for one, worker in self._workers.items() if worker.hung_seconds}
            if len(self._workers) >= MAX_RESOLVING:
                raise OSError(None, f"{MAX_RESOLVING} host names have not been resolved yet")
        worker = self._workers.setdefault(key, Worker(f"resolve {host[:40]}"))
        flags = socket.AI_ADDRCONFIG
        found = await worker.run(
            lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags), RESOLVE_SECONDS
        )
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=_numeric(address), port=address[1], family=kind, proto=proto, flags=numeric
            )
            for kind, _, proto, _, address in found
            if isinstance(address[0], str)
        ]

    async def close(self) -> None:
        self._workers.clear()


def _numeric(address: tuple[Any, ...]) -> str:
    """The host of a socket address; a link-local IPv6 address needs its scope."""
    if len(address) == 4 and address[3]:
        return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
    return str(address[0])
