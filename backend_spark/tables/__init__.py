"""Delta tables: schemas, reader, writer, recovery after power cuts, and maintenance."""
