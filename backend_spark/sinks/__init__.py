"""What Spark writes: Delta tables, one transaction per table and batch."""
