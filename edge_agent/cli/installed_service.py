"""The unit of an installed node: whether it may write its queue and read its TLS files.

Checked by root, because other users cannot see the rights of all folders.
"""

import os
import pwd
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from service_runtime.machine_check import MachineFinding, mend
from service_runtime.tls import TlsFiles

SETTINGS_FOLDER: Final = Path("/etc/yamamori")
USER: Final = "yamamori"
UNIT: Final = "edge-agent.service"
CREDENTIALS: Final = Path("/run/credentials")


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
    drop_ins: Path = Path(f"/etc/systemd/system/{UNIT}.d")
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
        for name in ("ca", "certificate", "key", "renewed"):
            given = getattr(files, name)
            if given is None:
                continue
            path, setting = Path(given).absolute(), f"tls.{name}"
            if path.is_relative_to(CREDENTIALS):
                yield from self._check_credential(setting, path)
            elif (obstacle := self._find_obstacle(path)) is not None:
                remedy = (
                    f"{obstacle} forbids it: use a file in {SETTINGS_FOLDER} (group "
                    f"{USER}, mode 0640), or LoadCredential= (docs/how-to/systemd.md)"
                )
                rule = f"be readable by the service (user {self.uid})"
                yield mend(setting, rule, given, remedy)

    def _check_credential(self, setting: str, path: Path) -> Iterator[MachineFinding]:
        is_named = re.search(
            rf"Credential\w*={re.escape(path.name)}\b", self._changes()
        )
        if not is_named and not path.exists():
            remedy = f"add LoadCredential={path.name}:... (systemctl edit {UNIT})"
            yield mend(setting, "be a credential of the service", str(path), remedy)

    def _find_obstacle(self, path: Path) -> Path | None:
        """The first folder or file on the way that the service may not use."""
        for each in (*reversed(path.parents), path):
            if not each.exists():
                return None  # not there yet
            right = stat.S_IXOTH if each.is_dir() else stat.S_IROTH
            if not self._class_bits(each) & right:
                return each
        return None

    def _class_bits(self, path: Path) -> int:
        """Rights of the service, as those of others are written."""
        status = path.stat()
        if status.st_uid == self.uid:
            return status.st_mode >> 6
        return status.st_mode >> 3 if status.st_gid in self.gids else status.st_mode

    def _has_more_folders(self) -> bool:
        """Whether a drop-in lets the unit write more than its folder."""
        return "ReadWritePaths=" in self._changes()

    def _changes(self) -> str:
        return "\n".join(
            each.read_text("utf-8") for each in self.drop_ins.glob("*.conf")
        )


def find_service(config: Path) -> InstalledService | None:
    """The service that reads these settings; None for others, or who is not root.

    Another user checks with its own rights.
    """
    if os.geteuid() != 0 or config.absolute().parent != SETTINGS_FOLDER:
        return None
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return None
    service = InstalledService(user.pw_uid)
    return replace(service, gids=tuple(os.getgrouplist(USER, user.pw_gid)))
