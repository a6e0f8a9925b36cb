"""The uplink: the most urgent message next, few bytes in flight, custody kept."""
