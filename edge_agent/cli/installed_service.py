"""The unit of an installed node: whether it may write its queue, checked by root."""

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service_runtime.machine_check import MachineFinding, mend

SETTINGS_FOLDER: Final = Path("/etc/yamamori")
USER: Final = "yamamori"
UNIT: Final = "edge-agent.service"


@dataclass(frozen=True)
class InstalledService:
    """The unit of an installed node.

    Attributes:
        uid: Its user.
        state_folder: Folder that systemd makes for it; all others are read-only.
        drop_ins: Folder of changes of the unit.
    """

    uid: int
    state_folder: Path = Path("/var/lib/yamamori")
    drop_ins: Path = Path(f"/etc/systemd/system/{UNIT}.d")

    def check(self, queue: Path) -> Iterator[MachineFinding]:
        """Check that the service may write its queue file; nothing if it may."""
        rule = "be in a folder that the service may write"
        if not queue.is_relative_to(self.state_folder) and not self._has_more_folders():
            remedy = (
                f"set a file in {self.state_folder}, or name the folder by "
                f"ReadWritePaths= (systemctl edit {UNIT})"
            )
            yield mend("queue.path", rule, str(queue), remedy)
            return
        found = next(each for each in queue.absolute().parents if each.exists())
        is_made = found in self.state_folder.parents
        if not is_made and found.stat().st_uid != self.uid:
            remedy = f"install -d -o {self.uid} -g {self.uid} {queue.parent}"
            yield mend("queue.path", rule, str(queue), remedy)

    def _has_more_folders(self) -> bool:
        """Whether a drop-in lets the unit write more than its folder."""
        files = self.drop_ins.glob("*.conf")
        return any("ReadWritePaths=" in each.read_text("utf-8") for each in files)


def find_service(config: Path) -> InstalledService | None:
    """The service that reads these settings; None for others, or who is not root.

    Another user checks with its own rights.
    """
    if os.geteuid() != 0 or config.absolute().parent != SETTINGS_FOLDER:
        return None
    try:
        return InstalledService(pwd.getpwnam(USER).pw_uid)
    except KeyError:
        return None
