"""The criteria in force: those of a notice, else those of the settings."""

import msgspec

from edge_agent.triage.stored import Json
from slope_science.criteria import Criteria
from slope_science.errors import ScienceError
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.notice import CriteriaNotice


class InForce:
    """What the soil water index is judged against.

    Attributes:
        criteria: Those in force.

    Args:
        configured: Those of the settings.
    """

    def __init__(self, configured: Criteria) -> None:
        self.criteria = self._configured = configured
        self._told: CriteriaNotice | None = None

    def take(self, told: CriteriaNotice, *, even_older: bool = False) -> bool:
        """Put a notice's criteria in force; False when they already are.

        Args:
            told: What the notice says.
            even_older: Whether those in force were taken back, so that older ones
                may follow.

        Raises:
            NoticeError: They are older than those in force, or no criteria.
        """
        if told == self._told:
            return False
        now = self._told
        if now is not None and told.version < now.version and not even_older:
            rule = f"no older than the one in force ({now.version:.0f})"
            remedy = "give it a newer version, or take the other back"
            raise NoticeError("criteria.version", rule, told.version, remedy)
        self.criteria, self._told = _criteria(told), told
        return True

    def drop(self) -> bool:
        """Go back to the settings; False when they are in force."""
        was, self._told = self._told, None
        self.criteria = self._configured
        return was is not None

    def out(self) -> Json:
        """For the snapshot."""
        return None if self._told is None else msgspec.to_builtins(self._told)

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot.

        Raises:
            ValueError: It is something else.
        """
        try:
            told = msgspec.convert(entry, CriteriaNotice | None)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        if told is not None:
            self.take(told, even_older=True)


def _criteria(told: CriteriaNotice) -> Criteria:
    try:
        return Criteria(
            told.warning_mm,
            told.advisory_mm,
            told.special_mm,
            assumed=False,
            line=told.line,
        )
    except ScienceError as error:
        field = f"criteria.{error.field}"
        raise NoticeError(field, error.rule, error.value) from error
