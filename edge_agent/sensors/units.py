"""The SenML units that a probe may be said to measure in.

Source: the IANA registries "SenML Units" and "Secondary Units" (RFC 8428, RFC 8798),
as far as a slope has use for them.
"""

PROBE_UNITS = (
    "m", "mm", "cm", "km", "deg", "rad",
    "Cel", "K", "%RH", "/", "/100", "ppm",
    "Pa", "hPa", "V", "mV", "A", "mA", "Ohm", "S/m", "W/m2",
    "s", "ms", "Hz", "1/s", "1/min", "count", "pH",
    "m/s", "m/s2", "mm/h", "m/h", "m3", "m3/s", "kg", "kg/m3", "N", "dB",
)  # fmt: skip
