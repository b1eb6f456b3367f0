"""`python -m frog.train RUN.toml`: one rank of a run. Launchers start this."""

import sys

from frog.core.processes import leave
from frog.core.terminal import printable_output
from frog.train.main import main

with printable_output():
    leave(main(sys.argv[1:]))
