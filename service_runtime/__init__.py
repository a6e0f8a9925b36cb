"""Service runtime: the parts that every daemon needs.

Settings, lifecycle, watchdog, systemd notification, metrics, TLS, atomic files, locks
and periodic threads. This package imports no other package of the project.
"""
