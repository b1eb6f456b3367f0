"""Run folders to eyes: the report, the comparison of two runs, the list of runs, TensorBoard."""
