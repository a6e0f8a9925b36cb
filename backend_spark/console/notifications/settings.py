"""Settings of the notifications."""

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final

from backend_spark.scoring.observation import JST
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.cells import Cell

_CLOCK: Final = r"((?:[01]\d|2[0-3]):[0-5]\d)"
_HOURS: Final = re.compile(f"{_CLOCK}-{_CLOCK}")


@dataclass(frozen=True)
class QuietHours:
    """Hours of each day, in Japan.

    Attributes:
        begin: Their begin.
        end: Their end; before the begin if midnight is between.
    """

    begin: time
    end: time

    @classmethod
    def parse(cls, text: str) -> "QuietHours":
        """Parse such as ``22:00-06:00``.

        Raises:
            FieldError: It has another form.
        """
        match = _HOURS.fullmatch(text)
        if match is None or match[1] == match[2]:
            raise FieldError("quiet", "two times, such as 22:00-06:00", text)
        return cls(time.fromisoformat(match[1]), time.fromisoformat(match[2]))

    def end_s(self, at_s: float) -> float:
        """Unix time of their end if a moment is in them, else the moment."""
        at = datetime.fromtimestamp(at_s, JST)
        if not self._contains(at.time()):
            return at_s
        end = at.replace(hour=self.end.hour, minute=self.end.minute, second=0)
        end = end.replace(microsecond=0)
        return (end if end > at else end + timedelta(days=1)).timestamp()

    def _contains(self, clock: time) -> bool:
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end


def check_cells(tokens: tuple[str, ...]) -> None:
    """Refuse what is no token of a cell.

    Raises:
        FieldError: One is none.
    """
    for token in tokens:
        try:
            Cell.from_token(token)
        except ValueError as error:
            rule = "tokens of cells, such as 354e18bc, or of cells that contain them"
            raise FieldError("cells", rule, token, str(error)) from error


@dataclass(frozen=True)
class NotificationSection:
    """``[[console.notifications]]``: whom the console notifies of events, and when."""

    name: str = key(KeyRule("Name of the rule in the delivery log, unique."))
    to: tuple[str, ...] = key(
        KeyRule(
            "Addresses: https://… of a webhook, mailtos://user:password@host:587?from=…"
            "&to=… for e-mail, any other of Apprise (appriseit.com/services), or "
            "/path/of/a/file whose first line is one."
        )
    )
    format: str = key(
        KeyRule(
            "Body of webhooks; json is signed with key_file and has all data.",
            choices=("json", "lineworks", "slack", "teams"),
        ),
        "json",
    )
    key_file: str | None = key(
        KeyRule(
            "File whose first line is the key of the webhooks' signatures, at least 24 "
            "characters (Standard Webhooks, HMAC-SHA256); absent: not signed."
        ),
        None,
    )
    from_level: int = key(
        KeyRule("Lowest level of which is notified.", low=3, high=5), 3
    )
    districts: tuple[str, ...] = key(
        KeyRule("Districts of the places; empty with cells empty: everywhere."), ()
    )
    cells: tuple[str, ...] = key(
        KeyRule(
            "Tokens of cells, or of larger cells that contain them; empty with "
            "districts empty: everywhere.",
            check=check_cells,
        ),
        (),
    )
    unacknowledged_min: float = key(
        KeyRule(
            "Escalation: notify only when nobody has decided about the event after "
            "this time; 0: at once.",
            "min",
            0,
            1440,
        ),
        0.0,
    )
    quiet: str = key(
        KeyRule(
            "Hours in Japan in which level 3 waits for their end, such as 22:00-06:00; "
            "levels 4 and 5 never wait.",
            check=lambda hours: hours and QuietHours.parse(hours),
        ),
        "",
    )
    language: str = key(
        KeyRule("Language of the messages.", choices=("ja", "en")), "ja"
    )
    exercises: bool = key(
        KeyRule("Whether to notify in an exercise too; the title then says so."), False
    )

    def __post_init__(self) -> None:
        """Refuse a rule that notifies nobody."""
        if not self.to:
            raise FieldError("to", "at least one address", self.to)
