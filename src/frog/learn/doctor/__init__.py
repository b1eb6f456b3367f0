"""`frog doctor`: what of a lab's needs this machine has, found by trying it.

`probes.py` starts programs that each try a few things and say what they have seen: `machine.py`, `tools.py`,
and `rank.py`, two of which make a world. `needs.py` says which lab needs what, and what takes its place.
"""
