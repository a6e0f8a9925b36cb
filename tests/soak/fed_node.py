"""A real node that is also fed messages of known priorities, with every id recorded.

Run as a program: ``fed_node.py NODE.toml NOTES PER_S``. It is `edge_agent`'s own
node with its queue, window and uplink. A thread beside the sensors puts messages and
records each one, fsynced, only after `put` has returned:
``<id> <priority> <monotonic seconds> <mark>``. The mark is in the message, too.
A message that the queue refuses is recorded as ``refused <priority> <monotonic
seconds>``. While ``NOTES.pause`` exists no message is put.
"""

import itertools
import logging
import os
import secrets
import sys
import threading
import time
from pathlib import Path

from edge_agent import app
from edge_agent.config import NodeSettings, read_node_settings
from edge_agent.coordinator import Coordinator
from edge_agent.queue.base import MessageDraft, QueueFileError, QueueFullError
from edge_agent.sampler import make_draft
from service_runtime import lifecycle
from service_runtime.lifecycle import run_service
from spatial_mqtt.senml import MessageId, Pack, Reading

log = logging.getLogger("soak.fed_node")

MIX = (1, 2, 3, 4, 5, 1, 2, 3)
MARK = "soak/mark"


def main(config: str, notes: str, per_s: str) -> None:
    """Run the node until SIGTERM."""
    settings = read_node_settings(Path(config))
    lifecycle.log_to_stderr()
    lifecycle.exit_on_thread_error()
    node, supervision = app.build_node(settings)
    feeder = Feeder(node, settings, Path(notes))
    threading.Thread(
        target=feeder.run, args=(float(per_s),), name="feeder", daemon=True
    ).start()
    run_service(node, supervision)


class Feeder:
    """Puts messages into a node's queue and records them."""

    def __init__(self, node: Coordinator, settings: NodeSettings, notes: Path) -> None:
        self._queue = node.parts.queue  # the same queue that the uplink drains
        self._wake = node.parts.uplink.wake
        self._id = settings.settings.node.id
        self._cell = app.find_node_cell(settings)
        self._pause = notes.with_name(f"{notes.name}.pause")
        self._file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def run(self, per_s: float) -> None:
        """Feed messages at a constant rate, forever."""
        for priority in itertools.cycle(MIX):
            time.sleep(1 / per_s)
            if not self._pause.exists():
                self._feed(priority)

    def _feed(self, priority: int) -> None:
        mark = secrets.token_hex(8)
        try:
            (put,) = self._queue.put([self._draft(priority, mark)])
        except (QueueFullError, QueueFileError) as error:
            log.warning("priority %d is refused: %s", priority, error)
            self._note("refused", priority, time.monotonic())
        else:
            self._note(put, priority, time.monotonic(), mark)
            self._wake()

    def _note(self, *fields: object) -> None:
        os.write(self._file, (" ".join(map(str, fields)) + "\n").encode())
        os.fsync(self._file)

    def _draft(self, priority: int, mark: str) -> MessageDraft:
        pack = Pack(
            MessageId(self._id, "-", 0),
            priority,
            time.time(),
            (Reading(MARK, None, mark),),
        )
        return make_draft(pack, self._cell)


if __name__ == "__main__":
    main(*sys.argv[1:])
