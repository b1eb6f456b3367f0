"""`python -m frog.train RUN.toml`: one rank of a run. Launchers start this."""

import sys

from frog.train.main import main

sys.exit(main(sys.argv[1:]))
