"""For job files: say which signals come, in order, and end on the first that asks for it."""

import os
import signal
import sys
import time

_ENDING = ("USR1", "TERM")


def main() -> int:
    """listen.py NAME SECONDS [CODE]: print signals for at most so long; after an ending one, "save" and exit."""
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
    time.sleep(float(os.environ.get("LISTEN_ON", "0.3")))  # a second signal, if one comes, is to be seen too
    _say(f"{name} got {' '.join(sorted(got)) or 'nothing'}")
    return code if got else 0


def _say(line: str) -> None:
    """In one piece: two tasks write into one file, and with PYTHONUNBUFFERED print writes the line's end by itself."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


sys.exit(main())
