"""What a gateway remembers in small files, for a start without the others."""

import logging
from pathlib import Path

log = logging.getLogger(__name__)


def remember(path: Path, content: bytes) -> None:
    """Replace a file, or keep the old one when the disk refuses.

    A gateway goes on without: what it holds in memory is right, and a full disk must
    not end what still carries alarms.
    """
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    except OSError as error:
        log.error("%s is not remembered: %s", path.name, error)  # noqa: TRY400
