"""`frog doctor`: find out by trying which labs this machine can run.

`probes.py` starts programs that each try a few things and report the results: `machine.py`, `tools.py`, and two copies
of `doctor_rank.py`, which form a world. `needs.py` lists each lab's needs and their substitutes.
"""
