"""The training program, for any launcher: `python train.py`, `torchrun --nproc_per_node=4 train.py`."""

import sys

from frog.core.processes import leave
from frog.train.main import main

if __name__ == "__main__":
    leave(main(sys.argv[1:]))
