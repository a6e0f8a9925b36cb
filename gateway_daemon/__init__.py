"""The gateway daemon: Gamma's Gateway and Manager, with durable queues and custody."""
