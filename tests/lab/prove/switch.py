"""The command that an operator would have: it restarts the lab's engine with the flags of a name.

python switch.py URL-OF-THE-STAND changed|original
"""

import sys
import urllib.request

with urllib.request.urlopen(f"{sys.argv[1]}/{sys.argv[2]}", data=b"", timeout=120) as answer:
    print(answer.read().decode())
