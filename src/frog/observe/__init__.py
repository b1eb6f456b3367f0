"""The observer inside each rank of any program, and the environment that starts it.

`hook/` is what a rank runs: standard library only, Python 3.9 or later, independent of this package, since the ranks of
a program may use another environment. `frog.core.runs.observed` reads what it writes.
"""
