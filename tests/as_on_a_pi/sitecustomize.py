"""Runs the programs of a node or a gateway without pandas and numpy, as on a Pi.

Python imports this module at its start, from ``PYTHONPATH``. sqlite-utils imports
pandas and numpy where they are installed; that takes a second of processor time for
each process that a test starts, and no node or gateway has them.
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
STUDIES = {"overlay", "topology"}
"""Commands that exist only in a clone, and compute with numpy."""

words = {word.rpartition("/")[2] for word in sys.orig_argv[1:]}
if PROGRAMS & words:
    hidden: dict[str, Any] = {"pandas": None}  # `import pandas` raises ImportError
    if not STUDIES & words:
        hidden["numpy"] = None
    sys.modules.update(hidden)
