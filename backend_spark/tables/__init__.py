"""Delta tables: schemas, reader, writer, recovery and maintenance."""
