"""What an installer needs at the slope: looking at sensors and the link, setting up."""
