"""Sensors of what changes slowly, which need not be asked every minute."""

from dataclasses import dataclass

from edge_agent.sensors.base import SensorSettings
from spatial_mqtt.settings import Rule, key


@dataclass(frozen=True)
class SlowSettings(SensorSettings):
    """Keys of a sensor that is read every five minutes unless told otherwise.

    Must stand first among several bases, or its default is lost.
    """

    interval_s: float = key(
        Rule("Time between readings.", unit="s", low=1, high=3600), 300.0
    )
