"""How far alerts have come, told as Spark tells it: the log is trimmed behind it.

The table holds the truth; this copy, written after it, is what the retention of the
log reads beside the checkpoints of Spark's queries.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_spark.durability import fsync_file, fsync_folder, make_folder
from backend_spark.sources.offsets import Offset

BATCH: Final = "0"
HEAD: Final = "v1\n{}\n"
"""Version and settings, which come before the offset."""


@dataclass(frozen=True)
class Progress:
    """A checkpoint of one batch that is written anew each time.

    Attributes:
        folder: Below the folder of checkpoints.
    """

    folder: Path

    def tell(self, offset: Offset) -> None:
        """Say that everything up to an offset is in the table."""
        for name, text in (("offsets", HEAD + json.dumps(offset)), ("commits", "v1\n")):
            path = self.folder / name / BATCH
            make_folder(path.parent)
            unfinished = path.with_name(f".{BATCH}.unfinished")
            unfinished.write_text(text, encoding="utf-8")
            fsync_file(unfinished)
            unfinished.rename(path)
            fsync_folder(path.parent)
