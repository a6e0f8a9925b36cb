"""A storm on one machine: every program as a process, every link a real socket."""
