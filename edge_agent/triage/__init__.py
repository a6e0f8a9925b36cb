"""How urgent readings are: the node's own judgement, without a network.

Pure: readings and the time go in, a priority with its reasons comes out. What has
to outlive the process goes through `Triage.snapshot`.
"""

from edge_agent.triage.engine import Assessment, Triage
from edge_agent.triage.snapshot import SnapshotError

__all__ = ["Assessment", "SnapshotError", "Triage"]
