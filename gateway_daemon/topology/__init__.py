"""How a federation of brokers is joined, and what each of them then carries."""
