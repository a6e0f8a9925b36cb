"""The Manager: keeps the areas of the gateways and the table of distributed brokers."""
