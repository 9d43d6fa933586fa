"""Imports vLLM once, then starts each engine by fork: two seconds instead of thirty, and far less memory.

Runs under the lab's engine environment and is driven over its standard input and output, one JSON object a
line: {"do": "start", "name", "argv", "title", "env", "log"}, {"do": "stop", "names"}, {"do": "kill", "names"},
{"do": "alive"}.
Each command has an "id" and gets one line of answer with that id. When the input ends, so does everything.

Three nets keep processes from being left behind: the end of the input, PR_SET_PDEATHSIG here and in every
descendant (whoever started it died, however it died), and one process group for each engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 4.0

PRELOAD = (
    "torch",
    "vllm",
    "vllm.envs",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.api_server.routers",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.model_executor.models.llama",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "fastapi",
    "prometheus_client",
    "setproctitle",
    "tokenizers",
    "transformers",
    "uvicorn",
)
"""What an engine imports by the time it serves. One that is missing here only makes starts slower."""


class Engine:
    """One forked engine: the leader of a process group that is not reaped before the group was killed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def exited(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def finish(self) -> None:
        """Kill what is left of the group and reap it; before that, its number cannot be reused."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)


class ForkServer:
    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "start":
                return {"pid": self._start(command)}
            case "stop":
                self.stop(command["names"])
                return {}
            case "kill":
                for name in command["names"]:
                    self._engines.pop(name).finish()
                return {}
            case "alive":
                return {"alive": [name for name, engine in self._engines.items() if not engine.exited()]}
            case other:
                return {"error": f"unknown command {other}"}

    def stop(self, names: list[str]) -> None:
        stopping = [self._engines.pop(name) for name in names if name in self._engines]
        for engine in stopping:
            engine.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and not all(engine.exited() for engine in stopping):
            time.sleep(0.05)
        for engine in stopping:
            engine.finish()

    def kill_all(self) -> None:
        for engine in self._engines.values():
            engine.finish()
        self._engines.clear()

    def _start(self, command: dict[str, Any]) -> int:
        pid = os.fork()
        if pid == 0:
            _become_engine(command)
        os.setpgid(pid, pid)  # the child says so too; whoever is first, the group exists when we go on
        self._engines[command["name"]] = Engine(pid)
        return pid


def _become_engine(command: dict[str, Any]) -> None:
    """Never returns: this forked process is the API server from here on."""
    try:
        os.setpgid(0, 0)
        _redirect(command["log"])
        os.environ.update(command["env"])
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["api_server", *command["argv"]]
        import setproctitle
        from vllm.entrypoints.launchers.api_server import entry

        setproctitle.setproctitle(command["title"])
        entry.main()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(nothing, 0)
    os.dup2(written, 1)
    os.dup2(written, 2)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _adopt_orphans() -> None:
    """An engine core that outlives its API server becomes our child, and so is reaped and no zombie."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _fork_instead_of_spawn() -> None:
    """vLLM insists on `spawn`, which would import everything again in the engine core process."""
    get_context = multiprocessing.get_context

    def patched(method: str | None = None) -> Any:
        return get_context("fork" if method == "spawn" else method)

    multiprocessing.get_context = patched  # type: ignore[assignment]


def _preload() -> None:
    for module in PRELOAD:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"not preloaded: {module}: {error}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # keeps the collector from writing to, and so from copying, the shared pages


def main() -> None:
    _die_with_parent()  # while importing, nobody reads the input to see it end
    _adopt_orphans()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints belongs in the log, not among the answers
    os.set_inheritable(answers.fileno(), False)
    _fork_instead_of_spawn()
    started = time.monotonic()
    _preload()
    os.register_at_fork(after_in_child=_die_with_parent)
    server = ForkServer()
    print(json.dumps({"ready_s": round(time.monotonic() - started, 1)}), file=answers)
    try:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = server.answer(command)
            except Exception as error:
                answer = {"error": repr(error)}
            print(json.dumps({"id": command["id"], **answer}), file=answers)
    except BrokenPipeError:
        pass  # nobody listens any more
    finally:
        server.kill_all()


if __name__ == "__main__":
    main()
