"""What all tests share."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from tests.support.slow_files import SLOW

RUN_FOLDER = "KVITALS_TEST_RUN"
"""What the processes of this run share of recordings that they judged (tests/support/recordings.py)."""

for size in ("COLUMNS", "LINES"):  # of a terminal that a test runs in, or that processes side by side make up
    os.environ.pop(size, None)

# Collections of garbage after each 700 objects are a tenth of the time of tests that replay recordings.
gc.set_threshold(20_000, 20, 20)

HOUSE = {path.name for path in (Path(__file__).parents[1] / "kvitals").iterdir() if path.is_symlink()}


class OneName:
    """Refuses `import agent`: a module that is imported under two names exists twice (docs/decisions/0014)."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None and name in HOUSE:
            raise ModuleNotFoundError(f"import kvitals.{name} instead of {name}", name=name)
        return None


sys.meta_path.insert(0, OneName)

# A deadline would make the tests fail on a busy machine; examples are the same in every run, and more can be
# asked for with --hypothesis-profile=search.
settings.register_profile("kvitals", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("kvitals")


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the others makes the folder of the run, and removes it at its end."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="kvitals-tests-")
        os.environ[RUN_FOLDER] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of slow files as `system` and puts them first, so that all processes end at the same time; leaves
    the order of all others."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(SLOW)}
    for item in items:
        if item.path in order:
            item.add_marker(pytest.mark.system)
    items.sort(key=lambda item: order.get(item.path, len(SLOW)))
