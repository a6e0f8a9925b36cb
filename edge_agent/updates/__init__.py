"""Software updates: rollouts, the download and the check of a bundle."""
