"""Evidence: injected faults over the whole path from sensor to siren."""
