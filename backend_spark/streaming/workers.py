"""Daemon that forks Spark's Python workers: ``spark.python.daemon.module``.

Spark's own daemon has imported nothing, so each worker imports pandas, Arrow and
delta-rs: 75 MB and a second of CPU time. This daemon imports them once, and the workers
share that memory.
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
"""Modules of the job's tasks, imported before the fork."""

if __name__ == "__main__":
    # Otherwise the first collection in a worker writes to every object's memory page.
    gc.collect()
    gc.freeze()
    manager()
