"""Where Spark's Python workers come from: ``python -m backend_spark.workers``.

Spark forks them from a process that has imported nothing, and each then imports pandas,
Arrow and delta-rs for itself: 75 MB and a second of processor time. Here all of that is
imported once, and what is forked shares it.
"""

import gc
from typing import Final

import pyspark.worker
from pyspark.daemon import manager

import backend_spark.pipeline
import backend_spark.sources.segment_log

SHARED: Final = (
    pyspark.worker,
    backend_spark.pipeline,
    backend_spark.sources.segment_log,
)
"""What the tasks of the job need, with all that it imports."""

if __name__ == "__main__":
    # Else the first collection of a worker writes to every object, and shares none.
    gc.collect()
    gc.freeze()
    manager()
