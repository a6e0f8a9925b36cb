"""The durable queue: what is not yet on the next store's disk is here."""
