"""Requirements of tests with pods."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import LIMIT_S


@pytest.fixture(scope="session")
def may_make_pods() -> None:
    """Skip the test, with the reason, if the system does not allow namespaces."""
    if not sys.platform.startswith("linux"):
        pytest.skip("pods on one machine need Linux")
    code = (
        "from frog.core import namespaces as n\n"
        "import os\n"
        "n.unshare_as(n.PROCESSES | n.NETWORK, 0, 0)\n"
        "if (child := os.fork()) == 0:\n"
        "    n.separate_mounts(); n.mount_proc('/proc'); n.make_read_only('/'); os._exit(0)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        pytest.skip(f"this system does not allow namespaces: {done.stderr.strip().splitlines()[-1]}")
