"""`frog docs` as typed: it prints an address on the loopback interface, serves pages, and ends cleanly."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.core.errors import UsageError
from tools.site.build import is_current
from tools.site.serve import serve

_SERVE = "import sys; from pathlib import Path; from tools.site.serve import serve; serve(Path(sys.argv[1]), 0)"


def test_frog_docs_serves_on_loopback_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>Frog</title>")
    line = [sys.executable, "-c", _SERVE, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout
        said = child.stdout.readline()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)  \(Ctrl-C ends it\)\n", said)
        assert found, said
        with urllib.request.urlopen(found[1], timeout=LIMIT_S) as answer:
            assert answer.read() == b"<title>Frog</title>"
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=LIMIT_S)
        assert (child.returncode, out, errors) == (0, "\n", "")


def test_unavailable_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: .*in use"):
            serve(tmp_path, port)
    with pytest.raises(UsageError, match="--port 70000"):
        serve(tmp_path, 70000)


def test_site_is_current_until_a_page_is_newer(tmp_path: Path) -> None:
    for name in ("docs/a.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "site/index.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert not is_current(tmp_path, tmp_path / "none")
    made = (tmp_path / "site/index.html").stat().st_mtime
    for name in ("docs/a.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        _set_time(tmp_path / name, made - 1)
    assert is_current(tmp_path, tmp_path / "site")
    _set_time(tmp_path / "docs/a.md", made + 1)
    assert not is_current(tmp_path, tmp_path / "site")


def _set_time(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))
