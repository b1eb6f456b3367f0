"""Print the received signals, and end on the first ending one; job files start this."""

import os
import signal
import sys
import time

_ENDING = ("USR1", "TERM")


def main() -> int:
    """Run listen.py NAME SECONDS [CODE]: wait for signals for at most SECONDS; after an ending one, "save" and exit."""
    name, seconds = sys.argv[1], float(sys.argv[2])
    code = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    got: list[str] = []
    for short in ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT"):
        number = getattr(signal, f"SIG{short}")
        signal.signal(number, lambda _number, _frame, short=short: got.append(short))
    _say(f"{name} listens")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not set(got) & set(_ENDING):
        time.sleep(0.02)
    time.sleep(float(os.environ.get("LISTEN_ON", "0.3")))  # so that a second signal is also seen
    _say(f"{name} got {' '.join(sorted(got)) or 'nothing'}")
    return code if got else 0


def _say(line: str) -> None:
    """Write a line in one call: tasks share a file, and with PYTHONUNBUFFERED print writes the newline separately."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


sys.exit(main())
