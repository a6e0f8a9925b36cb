"""Updates of the image: rollouts, download and check of a bundle."""
