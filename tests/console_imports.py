"""What the process imports from which `console_process` forks; only there."""

import gc

from backend_spark.cli.console import limit_memory

limit_memory()  # as the command does before its imports
import backend_spark.console.app  # noqa: E402, F401 - for the consoles

gc.freeze()  # what is shared stays shared
