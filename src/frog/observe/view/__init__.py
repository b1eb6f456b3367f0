"""Views of run folders: the report, the comparison of two runs, the list of runs, TensorBoard."""
