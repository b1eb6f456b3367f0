"""Old addresses of pages that have moved. Each leads to the new address, so that published links keep working."""

from __future__ import annotations

import posixpath
from pathlib import Path

from frog.core.files import write_atomic

_PAGES_OF_ROOMS = {
    "cluster": ("kubernetes", "slurm"),
    "launch": ("launchers", "network"),
    "learn": ("course", "exercises", "learn"),
    "measure": ("chaos", "collectives"),
    "observe": ("known-errors", "run-folder", "simulated-gpus", "your-program"),
    "plan": ("plan",),
    "train": ("elastic", "guard-model", "own-strategy", "strategies"),
}
"""Pages that were directly in docs/ in Frog 0.1, by the folder that they are in now."""

MOVED = {f"docs/{page}.html": f"docs/{room}/{page}.html" for room, pages in _PAGES_OF_ROOMS.items() for page in pages}
"""New address of each old address."""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="robots" content="noindex">
<title>This page has moved</title>
<link rel="canonical" href="{target}">
<script>location.replace("{target}" + location.hash)</script>
<meta http-equiv="refresh" content="0; url={target}">
</head>
<body>
<p>This page has moved: <a href="{target}">{target}</a></p>
</body>
</html>
"""


def write_redirects(site: Path) -> None:
    """Write a page at each old address that leads to the new one, also to a heading of it."""
    for old, new in MOVED.items():
        write_atomic(site / old, _PAGE.format(target=posixpath.relpath(new, posixpath.dirname(old))), replace=False)
