"""Ctrl-C while a command is loading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

_INTERRUPTS = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize(
    "module",
    [
        "frog.core.old_names",
        "frog.cli",
        "argparse",
        "frog.observe.view.view_commands",
        "frog.observe.view.runs",
    ],
)
@pytest.mark.parametrize("start", [["-m", "frog"], ["FROG"]])
def test_interrupt_while_a_command_loads_prints_nothing(tmp_path: Path, module: str, start: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTS.format(module=module))
    script = tmp_path / "frog"
    script.write_text("import sys\nfrom frog.cli import main\nsys.exit(main())\n")
    words = [str(script) if word == "FROG" else word for word in start]
    before = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, *words, "runs"], capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **before}
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_interrupt_while_another_program_imports_frog_is_its_own(tmp_path: Path) -> None:
    program = tmp_path / "my.py"
    program.write_text(
        _INTERRUPTS.format(module="frog.core.old_names")
        + "try:\n    import frog\nexcept KeyboardInterrupt:\n    print('caught')\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "caught\n")
