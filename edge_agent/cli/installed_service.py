"""The unit of an installed node: whether it may write its queue and read its TLS files.

Checked by root, because other users cannot see the rights of all folders.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service_runtime.machine_check import MachineFinding, mend
from service_runtime.service_rights import (
    UNITS,
    ServiceUser,
    find_service_user,
    read_drop_ins,
)
from service_runtime.tls import TlsFiles

UNIT: Final = "edge-agent.service"


@dataclass(frozen=True)
class InstalledService:
    """The unit of an installed node.

    Attributes:
        uid: Its user.
        state_folder: Folder that systemd makes for it; all others are read-only.
        drop_ins: Folder of changes of the unit.
        gids: Its groups.
    """

    uid: int
    state_folder: Path = Path("/var/lib/yamamori")
    drop_ins: Path = UNITS / f"{UNIT}.d"
    gids: tuple[int, ...] = ()

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

    def check_tls(self, files: TlsFiles) -> Iterator[MachineFinding]:
        """Check that the service may read its TLS files; nothing if it may."""
        user = ServiceUser(self.uid, self.gids, self.drop_ins.parent)
        yield from user.check_tls(files)

    def _has_more_folders(self) -> bool:
        """Whether a drop-in lets the unit write more than its folder."""
        return "ReadWritePaths=" in read_drop_ins(self.drop_ins)


def find_service(config: Path) -> InstalledService | None:
    """The service that reads these settings; None for others, or who is not root."""
    user = find_service_user(config)
    return None if user is None else InstalledService(user.uid, gids=user.gids)
