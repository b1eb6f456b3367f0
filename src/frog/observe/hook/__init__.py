"""The folder on PYTHONPATH of the ranks: Python imports its `sitecustomize` at every start."""
