"""JMA's analysed rain and soil water index: GRIB2 files, table, comparison by cell."""
