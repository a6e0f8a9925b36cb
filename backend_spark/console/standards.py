"""Services for other programs: SensorThings, OGC API Features, CAP, downloads."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_spark.console.audit_log import Journal
from backend_spark.console.cap_messages import CapMessages
from backend_spark.console.features import CellFeatures
from backend_spark.console.live_state import LiveState
from backend_spark.console.places import StoredPlaces
from backend_spark.sensorthings.service import SensorThingsService
from backend_spark.tables.answer_limits import AnswerLimits

CAP_FOLDER: Final = "cap"


@dataclass(frozen=True)
class StandardServices:
    """Services for other programs, which share the limits of their work.

    Attributes:
        limits: Of the work for answers.
        things: Readings, by SensorThings.
        features: Cells and levels, by OGC API Features.
        cap_messages: CAP messages that analysts made.
    """

    limits: AnswerLimits
    things: SensorThingsService
    features: CellFeatures
    cap_messages: CapMessages


def open_standards(
    live_state: LiveState,
    places: StoredPlaces,
    journal: Journal,
    folder: Path,
    monotonic: Callable[[], float],
) -> StandardServices:
    """Open the services.

    Args:
        live_state: Live state, with the folder of the tables.
        places: Names of the cells.
        journal: Has the entries of CAP messages.
        folder: Folder of the console's files.
        monotonic: Clock for the limits of time.
    """
    limits = AnswerLimits(monotonic)
    things = SensorThingsService(live_state.tables, live_state.clock, monotonic, limits)
    features = CellFeatures(live_state, limits, places)
    messages = CapMessages(journal, folder / CAP_FOLDER)
    return StandardServices(limits, things, features, messages)
