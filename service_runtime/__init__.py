"""Service runtime: what every daemon needs, whatever it does.

Settings, lifecycle, watchdog, systemd notification, metrics, TLS, atomic files, locks
and periodic threads. This package imports no other package of the project.
"""
