"""Research code: how a federation of brokers is connected, and each broker's load."""
