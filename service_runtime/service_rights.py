"""What the user of a service may read, checked by root before the service starts.

Another user cannot see the rights of all folders, and checks with its own.
"""

import os
import pwd
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from service_runtime.machine_check import MachineFinding, finding
from service_runtime.tls import TlsFiles

SETTINGS_FOLDER: Final = Path("/etc/yamamori")
USER: Final = "yamamori"
UNITS: Final = Path("/etc/systemd/system")
CREDENTIALS: Final = Path("/run/credentials")


@dataclass(frozen=True)
class ServiceUser:
    """The user of a service.

    Attributes:
        uid: Its number.
        gids: Its groups.
        units: Folder of units, where drop-ins change them.
    """

    uid: int
    gids: tuple[int, ...] = ()
    units: Path = UNITS

    def check_tls(self, files: TlsFiles) -> Iterator[MachineFinding]:
        """Check that the service may read its TLS files; nothing if it may."""
        for name in ("ca", "certificate", "key", "renewed"):
            yield from self.check_file(f"tls.{name}", getattr(files, name))

    def check_file(self, setting: str, given: str | None) -> Iterator[MachineFinding]:
        """Check that the service may read a file; nothing if it may, or without one."""
        if given is None:
            return
        path = Path(given).absolute()
        if path.is_relative_to(CREDENTIALS):
            yield from self._check_credential(setting, path)
        elif (obstacle := self.find_obstacle(path)) is not None:
            remedy = (
                f"{obstacle} forbids it: use a file in {SETTINGS_FOLDER} (user "
                f"{self.uid}, mode 0600, or group {USER}, mode 0640), or "
                "LoadCredential= (docs/how-to/systemd.md)"
            )
            rule = f"be readable by the service (user {self.uid})"
            yield finding(setting, rule, given, remedy)

    def find_obstacle(self, path: Path) -> Path | None:
        """The first folder or file on the way that the user may not use."""
        for each in (*reversed(path.parents), path):
            if not each.exists():
                return None  # not there yet
            right = stat.S_IXOTH if each.is_dir() else stat.S_IROTH
            if not self._class_bits(each) & right:
                return each
        return None

    def _class_bits(self, path: Path) -> int:
        """Rights of the user, as those of others are written."""
        status = path.stat()
        if status.st_uid == self.uid:
            return status.st_mode >> 6
        return status.st_mode >> 3 if status.st_gid in self.gids else status.st_mode

    def _check_credential(self, setting: str, path: Path) -> Iterator[MachineFinding]:
        unit = path.relative_to(CREDENTIALS).parts[0]
        drop_ins = read_drop_ins(self.units / f"{unit}.d")
        is_named = re.search(rf"Credential\w*={re.escape(path.name)}\b", drop_ins)
        if not is_named and not path.exists():
            remedy = f"add LoadCredential={path.name}:... (systemctl edit {unit})"
            yield finding(setting, "be a credential of the service", str(path), remedy)


def read_drop_ins(folder: Path) -> str:
    """Text of the files that change a unit."""
    return "\n".join(each.read_text("utf-8") for each in folder.glob("*.conf"))


def find_user(name: str) -> ServiceUser | None:
    """A user of this machine; None if there is none, or root does not check."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return None
    groups = tuple(os.getgrouplist(name, user.pw_gid))
    return ServiceUser(user.pw_uid, groups) if os.geteuid() == 0 else None


def find_service_user(config: Path, name: str = USER) -> ServiceUser | None:
    """The user of the service that reads these settings; None for other settings.

    Args:
        config: The settings file.
        name: Its user. The units of other users than `USER` add the group of that one.
    """
    if config.absolute().parent != SETTINGS_FOLDER:
        return None
    user, daemons = find_user(name), find_user(USER)
    if user is None or daemons is None:
        return None
    return replace(user, gids=(*user.gids, *daemons.gids))
