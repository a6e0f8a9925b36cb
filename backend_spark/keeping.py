"""``[keep]`` of the backend's settings: how long rows stay."""

from dataclasses import dataclass

from spatial_mqtt.settings import Rule, key


def _keep(what: str) -> int:
    told = f"Age at which {what} are deleted; 0 keeps them for ever."
    days: int = key(Rule(told, "days", 0, 36_500), 0)
    return days


@dataclass(frozen=True)
class KeepSettings:
    """How long rows stay in the tables.

    Attributes:
        bronze_days: Messages as received; what is gone cannot be replayed.
        silver_days: Readings, and packs that do not decode.
        levels_days: Levels and what is behind them.
        messages_days: Message ids.
        alerts_days: Alerts.
        nodes_days: When and what a node last said.
        forecasts_days: Official forecasts of rain.
    """

    bronze_days: int = _keep("messages as received")
    silver_days: int = _keep("readings, and packs that do not decode,")
    levels_days: int = _keep("levels, what is behind them and their revisions")
    messages_days: int = _keep("message ids")
    alerts_days: int = _keep("alerts")
    nodes_days: int = _keep("nodes that were not heard for so long")
    forecasts_days: int = _keep("forecasts of rain, by when they were known,")

    def days(self, table: str) -> int:
        """Of a table; 0 is for ever."""
        if table == "memories":  # which the scoring itself thins out
            return 0
        gold = dict.fromkeys(("sensors", "revisions", "sensor_revisions"), "levels")
        kin = {"rejected": "silver", **gold}
        return int(getattr(self, f"{kin.get(table, table)}_days"))
