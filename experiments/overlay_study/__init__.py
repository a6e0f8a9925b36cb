"""Simulators of the overlay, built from the same functions as the daemon.

Static: `methods` (topics of the thesis, the overlay around a topic, one message per
method), `baselines` (Skip Graph, PSG, ATM and PATM), `statistics` (means over many
runs). In simulated time: `network` (forwarders with queues and crashes, load on shared
brokers), `churn` (joins, leaves, crashes and partitions), `disasters` (valleys with
shared links).
"""
