"""Puts a node in safe mode together."""

import logging
import secrets
import threading

from edge_agent import bench_wiring, wiring
from edge_agent.queue.base import Queue
from edge_agent.queue.errors import QueueFileError, QueueFullError
from edge_agent.queue.memory import MemoryQueue
from edge_agent.safe_mode import Safe, report, tell
from edge_agent.sampling import draft_of

log = logging.getLogger(__name__)

MEMORY_BYTES = 10_000_000


def safe_node(safe: Safe) -> wiring.Node:
    """A node of what can be used, which tells what cannot.

    Raises:
        QueueFileError: Its queue cannot be opened.
    """
    for problem in safe.problems:
        log.error("safe mode: %s", problem)
    clock = bench_wiring.bench_clock(safe.node)
    cell = wiring.cell(safe.node)
    queue = wiring.own_queue(safe.node) if safe.has_queue else _memory(safe)

    def put() -> None:
        pack = report(safe, clock.wall_s(), clock.is_synchronised())
        try:
            queue.put([draft_of(pack, cell)])
        except (QueueFullError, QueueFileError) as error:
            log.warning("safe mode is not reported: %s", error)

    rest = threading.Event().wait
    threading.Thread(
        target=tell, args=(put, rest), name="safe mode", daemon=True
    ).start()
    return wiring.Node(safe.node, queue, safe.problems)


def _memory(safe: Safe) -> Queue:
    log.error("safe mode: [queue] is wrong, so that its file is left alone")
    id_ = safe.node.settings.node.id
    return MemoryQueue(id_, secrets.token_hex(4), MEMORY_BYTES)
