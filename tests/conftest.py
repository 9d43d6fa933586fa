"""What all tests share."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from tests.support.long_files import LONG

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of `LONG` first, and leaves the order of all others."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(LONG)))


def pytest_collection_finish() -> None:
    """What is imported stays: no collection of garbage reads it again."""
    gc.collect()
    gc.freeze()


MANY_OBJECTS = 100_000
"""Fewer take no time to collect, and are left to the next file."""


@pytest.fixture(scope="module", autouse=True)
def small_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """Release what a file of tests cached, and keep what is left out of later collections of garbage.

    A replayed recording takes 10 MB of small objects. With all of them in one process, each full collection takes
    seconds, and several hundred tests cause some.
    """
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.collect()
        gc.freeze()
