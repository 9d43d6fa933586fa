"""The prover's side of the supervisor."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from kvitals.app.prove.actuator import CommandRun
from kvitals.app.prove.supervisor import ATTEMPTS, BETWEEN_SECONDS, Assignment, SupervisorAnswer
from kvitals.series.undecodable import UNDECODABLE

START_SECONDS = 30.0
COMMAND = (sys.executable, "-P", "-m", "kvitals.app.prove.supervisor")


class SupervisorGoneError(Exception):
    """The supervisor ended; what it was asked for may be half done."""


class SupervisedChange:
    """A change in the hands of a supervisor. It is taken back when this process ends, however it ends."""

    def __init__(self, process: asyncio.subprocess.Process, assignment: Assignment) -> None:
        self._process = process
        self._assignment = assignment

    @property
    def alive(self) -> bool:
        """Whether somebody would take the change back if this process died now."""
        return self._process.returncode is None

    async def apply(self) -> CommandRun:
        """Make the change. Raises SupervisorGoneError."""
        return await self._ask("apply", self._assignment.limit)

    async def leave(self) -> None:
        """The change stays, or there is none. Raises SupervisorGoneError."""
        await self._ask("leave", START_SECONDS)

    async def rollback(self) -> CommandRun:
        """Take the change back. Raises SupervisorGoneError."""
        return await self._ask("rollback", ATTEMPTS * (self._assignment.limit + BETWEEN_SECONDS))

    async def _ask(self, what: str, limit: float) -> CommandRun:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(what) + b"\n")
            await self._process.stdin.drain()
            line = await asyncio.wait_for(self._process.stdout.readline(), limit + START_SECONDS)
            answer = msgspec.json.decode(line, type=SupervisorAnswer)
        except (OSError, TimeoutError, *UNDECODABLE) as error:
            raise SupervisorGoneError(f"the supervising process ended before it could {what}") from error
        return CommandRun(answer.code, answer.seconds, answer.output, answer.ended)


@asynccontextmanager
async def supervised_change(assignment: Assignment, lock: int) -> AsyncIterator[SupervisedChange]:
    """A supervisor for one assignment. However the block is left, its end is the end of the supervisor's input: what is
    still applied then is taken back, and waited for. lock: a descriptor that the supervisor keeps open as well."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        pass_fds=(lock,),
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(assignment) + b"\n")
        await process.stdin.drain()
        yield SupervisedChange(process, assignment)
    finally:
        process.stdin.close()
        await asyncio.shield(process.wait())
