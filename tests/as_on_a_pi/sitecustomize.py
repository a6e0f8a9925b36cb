"""Runs the programs of a node or a gateway without pandas, as on a Raspberry Pi.

Python imports this module at its start, from ``PYTHONPATH``. sqlite-utils imports
pandas where it is installed; that takes a second of processor time for each process
that a test starts, and no node or gateway has it.
"""

import sys
from typing import Any

PROGRAMS = {
    "edge_agent",
    "edge-agent",
    "gateway_daemon",
    "gateway-daemon",
    "fed_node.py",
}

if PROGRAMS & {word.rpartition("/")[2] for word in sys.orig_argv[1:]}:
    hidden: dict[str, Any] = {"pandas": None}  # `import pandas` raises ImportError
    sys.modules.update(hidden)
