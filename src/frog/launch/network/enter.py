"""Run a program inside a node: python -m frog.launch.network.enter NAMESPACE... -- COMMAND...

The namespaces are paths that the switch holds open. This process becomes the program and keeps its process id.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Enter the namespaces and execute the command. Returns only on failure."""
    from frog.launch.network.namespaces import enter

    split = arguments.index("--")
    command = arguments[split + 1 :]
    try:
        enter(arguments[:split])
        os.execvp(command[0], command)
    except OSError as error:
        at = f" {error.filename}" if error.filename else ""
        print(f"error: {command[0]} inside a node of --network: {error.strerror}{at}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
