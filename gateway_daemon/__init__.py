"""Gateway and Manager of Gamma, with durable queues and custody transfer."""
