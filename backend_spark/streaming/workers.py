"""Spark's Python worker daemon: ``python -m backend_spark.streaming.workers``.

Spark forks them from a process that has imported nothing, and each then imports pandas,
Arrow and delta-rs for itself: 75 MB and a second of processor time. Here all of that is
imported once, and what is forked shares it.
"""

import gc
from typing import Final

import pyspark.worker
from pyspark.daemon import manager

from backend_spark.streaming import pipeline, sources

SHARED: Final = (
    pyspark.worker,
    pipeline,
    sources,
)
"""What the tasks of the job need, with all that it imports."""

if __name__ == "__main__":
    # Else the first collection of a worker writes to every object, and shares none.
    gc.collect()
    gc.freeze()
    manager()
