"""Pages open in the chosen browser; without a browser, no program is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from pathlib import Path
from frog.core.browser import open_page
print(open_page(Path(sys.argv[1])))
"""


def test_report_opens_in_the_chosen_browser(tmp_path: Path) -> None:
    page = tmp_path / "report of one.html"
    os.mkfifo(tmp_path / "opened")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    for chosen, expected in ((str(browser), "True\n"), ("none", "False\n"), ("no-such-browser", "False\n")):
        env = {**os.environ, "BROWSER": chosen}
        assert subprocess.check_output([sys.executable, "-c", CODE, str(page)], env=env, text=True) == expected
    assert (tmp_path / "opened").read_text() == f"{page.as_uri()}\n"
