"""Worlds whose ranks stay alive and run one cell of code after the other: `%%ranks` in a notebook, `frog world`."""
