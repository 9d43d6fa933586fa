"""Real engines in known trouble: what the product is tried against.

From a shell: `python -m tests.lab --help`. From a test:

    async with engine(max_num_seqs=2) as one, Load([one.url], [Tenant("chat", clients=4)]) as load:
        await asyncio.sleep(10)
    load.truth()
"""

from .engines import Engine, Engines, engine
from .install import install, is_installed
from .load import Load
from .metrics import Watch
from .paths import LabError
from .product import Verdict, kvitals_command, record, triage
from .scenario import PHASES, Scenario, Slo, load_scenario, names
from .stage import Stage
from .traffic import InfiniteCache, Tenant

__all__ = [
    "PHASES",
    "Engine",
    "Engines",
    "InfiniteCache",
    "LabError",
    "Load",
    "Scenario",
    "Slo",
    "Stage",
    "Tenant",
    "Verdict",
    "Watch",
    "engine",
    "install",
    "is_installed",
    "kvitals_command",
    "load_scenario",
    "names",
    "record",
    "triage",
]
