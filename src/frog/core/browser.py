"""Open a page in the user's browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from frog.core.env import child_env


def open_page(path: Path) -> bool:
    """Open a file in the browser, as `open_address` does."""
    return open_address(path.absolute().as_uri())


def open_address(address: str) -> bool:
    """Open an address in the browser without waiting for it; return False if this machine has no browser.

    As in other programs, `$BROWSER` names the browser, and BROWSER=none means that there is none.
    """
    env = child_env()
    opener = _opener(env)
    if opener is None:
        return False
    try:
        subprocess.Popen(
            [opener, address],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # with an inherited pipe, a caller would wait until the browser ends
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    return True


def _opener(env: Mapping[str, str]) -> str | None:
    """Return the program that opens pages: $BROWSER if set, else the desktop's."""
    if chosen := env.get("BROWSER", "").split(":")[0]:
        return None if chosen == "none" else shutil.which(chosen)
    if sys.platform == "darwin":
        return shutil.which("open")
    has_screen = env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")
    return shutil.which("wslview") or (shutil.which("xdg-open") if has_screen else None)
