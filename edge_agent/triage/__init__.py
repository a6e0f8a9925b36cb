"""Triage: the priority of readings, judged on the node without a network.

Pure functions of readings and time. State that must survive a restart is in
`Triage.snapshot`.
"""
