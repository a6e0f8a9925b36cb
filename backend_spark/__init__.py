"""The backend: what arrives is on disk before it is acknowledged, then scored.

    MQTT -> ingest (no Spark) -> segment log -> Spark source
         -> bronze (as received) -> silver (one row a reading) -> gold (levels, ids)

`ingest` and `score` are separate processes that share one folder. Analysts read
the tables through `backend_spark.tables`, without Spark.
"""
