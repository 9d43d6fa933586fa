"""The supply chain: locks with hashes, the bill of materials, the container's base.

make ship
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
PINNED = re.compile(r"(?m)^([a-z0-9][a-z0-9.-]*)==(\S+)")


def pinned(lock: Path) -> set[tuple[str, str]]:
    """Name and version of every package in a lock."""
    return set(PINNED.findall(lock.read_text()))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_every_package_by_hash_and_names_no_host(lock: Path) -> None:
    text = re.sub(r"(?m)^ *#.*$", "", lock.read_text())
    entries = [entry for entry in re.split(r"(?m)^(?=\S)", text) if entry.strip()]
    assert len(entries) == len(PINNED.findall(text)) > 0  # nothing but pins: no option, no URL, no path
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


def test_locks_agree_with_one_another() -> None:
    dev = dict(pinned(ROOT / "requirements-dev.lock"))
    for lock in LOCKS:
        versions = pinned(lock)
        both = {name for name, _ in versions} & set(dev)
        assert {(n, v) for n, v in versions if n in both} <= pinned(ROOT / "requirements-dev.lock"), lock.name


@pytest.mark.parametrize(
    ("lock", "extra"), [("requirements.lock", None), ("requirements-ui.lock", "ui"), ("requirements-dev.lock", "dev")]
)
def test_a_lock_has_what_the_project_requires(lock: str, extra: str | None) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    names = {Requirement(one).name.lower() for one in required} - {"kvitals"}
    assert names <= {name for name, _ in pinned(ROOT / lock)}


def test_the_bill_of_materials_is_valid_and_lists_what_the_image_installs(tmp_path: Path) -> None:
    out, lock = tmp_path / "kvitals.cdx.json", ROOT / "requirements-ui.lock"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", ROOT / "pyproject.toml"]
    command += ["--output-reproducible", "--of", "JSON", "-o", out, lock]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(out.read_text()) is None
    bom = json.loads(out.read_text())
    assert bom["specVersion"] == "1.6" and bom["metadata"]["component"]["name"] == "kvitals"
    assert {(one["name"], one["version"]) for one in bom["components"]} == pinned(lock)


@pytest.mark.parametrize("base", ["", "python:3.12-slim-bookworm", "python@sha256:1234"])
def test_an_image_on_a_base_without_a_digest_is_refused(base: str) -> None:
    done = subprocess.run(
        ["make", "-s", "image", f"BASE={base}", "DOCKER=true"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "BASE must name a Python image with its digest" in done.stderr


def test_an_image_on_a_base_with_a_digest_is_built() -> None:
    base = f"python:3.12-slim-bookworm@sha256:{'0' * 64}"
    done = subprocess.run(
        ["make", "-s", "image", f"BASE={base}", "DOCKER=echo"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and f"--build-arg BASE={base}" in done.stdout


def test_nothing_in_the_container_is_installed_without_its_hash() -> None:
    text = (ROOT / "deploy/container/Containerfile").read_text()
    installs = re.findall(r"pip install ([^\\\n&]+)", text)
    assert len(installs) == 3
    assert all("--require-hashes" in one or ("--no-deps" in one and "--no-index" in one) for one in installs)
