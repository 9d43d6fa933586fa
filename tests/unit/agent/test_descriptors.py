"""The limit of open files is raised to the hard one, up to a bound."""

import resource
import subprocess
import sys

CODE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4000))
from kvitals.agent.descriptors import raise_limit
print(raise_limit(1000), raise_limit(100), raise_limit(65536), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_follows_the_hard_one() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 4000
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "1000 1000 4000 (4000, 4000)"
