"""Start the hooks that FROG_HOOKS names in this Python process; then let the program run as if this file did not exist.

Python imports the first `sitecustomize` on its path. If another one follows, this file runs it too, and leaves it in
`sys.modules`. A hook is a module with a function `install()`. A hook that fails must not stop the program: it costs
one line on stderr.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys


def _run_next() -> None:
    """Import the `sitecustomize` that Python would have found without this folder on its path."""
    own = os.path.dirname(os.path.realpath(__file__))
    others = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install(name: str) -> None:
    try:
        importlib.import_module(name).install()
    except Exception as error:
        print(f"frog: {name} did not start: {type(error).__name__}: {error}", file=sys.stderr)


for _name in filter(None, os.environ.get("FROG_HOOKS", "").split(",")):
    _install(_name.strip())
_run_next()  # last: its errors are the user's, and Python reports them as without this file
