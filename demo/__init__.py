"""Demo of a storm on one machine, with real processes and real sockets."""
