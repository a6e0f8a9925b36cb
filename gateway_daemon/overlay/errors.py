"""Errors of the overlay."""

from spatial_mqtt.errors import FieldError


class OverlayError(FieldError):
    """A parameter for which the overlay has no meaning."""
