"""What Spark reads: the segment log as a stream, the history of some cells."""
