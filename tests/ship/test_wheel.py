"""The wheel by itself: in an empty environment, away from the clone, it has all that the product is.

make ship
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "app", "config", "dashboards", "diagnoser", "kvcache", "rules", "series", "ui")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of what git has of this tree."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def kvitals(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an empty environment that has the wheel, without the web page's libraries."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", with_pip=True)
    wheel = next(built.glob("*.whl"))
    pip = [home / "venv/bin/pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements.lock"], check=True, timeout=600)
    subprocess.run([*pip, "--no-deps", wheel], check=True, timeout=120)
    return home / "venv/bin/kvitals"


def run(kvitals: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.defpath, "HOME": str(cwd), "LANG": "C.UTF-8"}
    return subprocess.run([kvitals, *arguments], capture_output=True, text=True, timeout=120, cwd=cwd, env=clean)


def is_ready(at: str) -> bool:
    """Whether an agent answers there and has a window to ask."""
    try:
        with urllib.request.urlopen(f"http://{at}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_wheel_judges_a_recorded_incident_that_it_carries(kvitals: Path, tmp_path: Path) -> None:
    place = next((kvitals.parents[1] / "lib").glob("python3*/site-packages/kvitals/app/demo/heavy_tenant.kvcap"))
    done = run(kvitals, "triage", str(place), "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["causes"][0]["code"] == "KVC01"


def test_the_wheel_runs_the_agent_on_a_recording(kvitals: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{probe.getsockname()[1]}"
    clean = {"PATH": os.defpath, "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    command = [kvitals, "run", "--demo", "--no-web", f"--listen={at}"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean, stdout=subprocess.DEVNULL) as agent:
        try:
            began = time.monotonic()
            while not is_ready(at):
                assert agent.poll() is None and time.monotonic() - began < 90
                time.sleep(0.5)
            told = run(kvitals, "triage", f"http://{at}", "--json", cwd=tmp_path)
        finally:
            agent.terminate()
    assert told.returncode == 1, told.stderr
    assert json.loads(told.stdout)["causes"][0]["code"] == "TEN02"


def test_the_wheel_has_every_rule_and_its_page(kvitals: Path, tmp_path: Path) -> None:
    listed = run(kvitals, "rules", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    for path in (ROOT / "rules/codes").glob("*.yaml"):
        assert path.name[:5] in listed.stdout
    assert "KV cache full: requests wait for blocks" in run(kvitals, "explain", "KVC01", cwd=tmp_path).stdout
    assert "the time between two output tokens" in " ".join(run(kvitals, "explain", "itl", cwd=tmp_path).stdout.split())


def test_the_wheel_writes_boards_rules_and_the_mixin(kvitals: Path, tmp_path: Path) -> None:
    """Without grafanalib, with which boards are drawn."""
    addresses = ("--runbooks", "https://wiki.example.org", "--grafana", "https://grafana.example.org")
    kinds = ("boards", "alerts", "recording", "alertmanager", "runbooks", "mixin")
    done = run(kvitals, "export", *kinds, "--out", "out", "--selector", 'job="kvitals"', *addresses, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out/boards").glob("*.json"))) == 9
    assert (tmp_path / "out/mixin/mixin.libsonnet").is_file()
    assert 'kvitals_engine_info{job="kvitals", ' in (tmp_path / "out/alerts.yaml").read_text()


def test_the_wheel_writes_a_first_configuration_and_completes_words(kvitals: Path, tmp_path: Path) -> None:
    assert run(kvitals, "init", cwd=tmp_path).returncode == 0
    checked = run(kvitals, "config", "check", "--offline", cwd=tmp_path)
    assert (checked.returncode, checked.stdout.splitlines()[0]) == (0, "kvitals.toml: valid")
    assert "triage" in run(kvitals, "completion", "bash", cwd=tmp_path).stdout


def test_without_the_web_page_s_libraries_it_says_how_to_get_them(kvitals: Path, tmp_path: Path) -> None:
    started = run(kvitals, "run", "--demo", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert started.returncode == 2
    assert "kvitals[ui]" in started.stderr and "--no-web" in started.stderr
    alone = run(kvitals, "web", cwd=tmp_path)
    assert alone.returncode == 2 and "kvitals[ui]" in alone.stderr


def test_the_wheel_has_every_file_of_the_packages_that_git_has(built: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {f"kvitals/{name}" for name in listed.stdout.split()} | {"kvitals/__init__.py", "kvitals/py.typed"}
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        missing = tracked - set(wheel.namelist())
    assert not missing, sorted(missing)[:10]
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert tracked <= names
    assert "deploy/container/Containerfile" in names


def test_the_wheel_installs_one_package(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"kvitals"}


def test_a_wheel_of_the_clone_equals_one_of_the_sdist(built: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    contents = []
    for path in (next(built.glob("*.whl")), next(tmp_path.glob("*.whl"))):  # `build` makes the first of the sdist
        with zipfile.ZipFile(path) as wheel:
            contents.append({info.filename: info.CRC for info in wheel.infolist() if "RECORD" not in info.filename})
    assert contents[0] == contents[1]


def test_it_lives_beside_packages_of_the_same_names(kvitals: Path, tmp_path: Path) -> None:
    beside_packages = next((kvitals.parents[1] / "lib").glob("python3*/site-packages"))
    others = [beside_packages / f"{name}.py" for name in PACKAGES]
    assert not [path for path in others if path.exists() or path.with_suffix("").exists()]
    try:
        for path in others:
            path.write_text(f"OWNER = 'another project: {path.stem}'\n")
        code = "".join(f"import {n}; import kvitals.{n}; assert {n}.OWNER\n" for n in PACKAGES) + "print('apart')"
        python = kvitals.with_name("python")
        done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "apart", done.stderr
        assert run(kvitals, "rules", "show", "KVC01", cwd=tmp_path).returncode == 0
    finally:
        for path in others:
            path.unlink(missing_ok=True)
