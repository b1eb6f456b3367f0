"""`python -m frog.train RUN.toml`: one rank of a run. Launchers start this."""

import sys

from frog.core.processes import leave
from frog.train.main import main

leave(main(sys.argv[1:]))
