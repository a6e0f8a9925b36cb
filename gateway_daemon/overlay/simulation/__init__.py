"""Simulates the overlay with the very functions that a live node needs.

`patterns` (the thesis' topics), `whole` (the overlay around a topic, numpy),
`methods` (who forwards what to whom), `spread` (one message), `means` (many): at
rest. In simulated time: `network` (forwarders with queues, receipts and crashes),
`load` (many topics on shared brokers), `ring` (joins, leaves, crashes and a cut in one
list), `terrain` (valleys with shared links, and disasters).
"""
