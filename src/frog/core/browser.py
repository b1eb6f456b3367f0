"""Open a page in the user's browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from frog.core.env import child_env


def open_page(path: Path) -> bool:
    """Ask the browser to show a file, and do not wait for it; False if this machine has no browser to ask.

    As with other programs, `$BROWSER` names the browser, and BROWSER=none means that there is none.
    """
    env = child_env()
    opener = _opener(env)
    if opener is None:
        return False
    try:
        subprocess.Popen(
            [opener, path.absolute().as_uri()],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a browser that kept this open would look like a command that does not end
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    return True


def _opener(env: Mapping[str, str]) -> str | None:
    """The program that opens pages: $BROWSER's first, else the desktop's."""
    if chosen := env.get("BROWSER", "").split(":")[0]:
        return None if chosen == "none" else shutil.which(chosen)
    if sys.platform == "darwin":
        return shutil.which("open")
    has_screen = env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")
    return shutil.which("wslview") or (shutil.which("xdg-open") if has_screen else None)
