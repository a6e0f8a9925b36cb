"""Simulates the overlay with the functions that the live node calls.

`patterns` (the thesis' topics), `whole` (the overlay around a topic, numpy),
`methods` (who forwards what to whom), `spread` (one message), `means` (many): at
rest. `network` (forwarders with queues, receipts and crashes), `load` (many topics
on shared brokers), `ring` (joins, leaves and crashes in one list): in simulated time.
"""
