"""Threads for reads that can hang: one daemon thread per collector, never the shared executor.

A read of /proc, of NVML or of a network file system can wait in the kernel for ever, and nothing ends such a call. In a
shared pool a few of them take all threads, and the interpreter waits for them at exit. So each collector has one thread
of its own, a daemon, and whoever waits for it waits up to a deadline.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_SECONDS = 60.0
"""A thread without work ends after this time; the next call starts another."""


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
