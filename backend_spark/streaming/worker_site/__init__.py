"""Folder on the path of Spark's Python processes, for its ``sitecustomize``."""
