"""sbatch of the emulator: what it asks the controller for, and what it prints. The controller is the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frog.cluster.emulator import sbatch as program
from frog.cluster.emulator.sbatch import sbatch

SCRIPT = "#!/bin/sh\n#SBATCH --job-name=tiny --nodes=2\n./x\n"


class Controller:
    """Accepts every job as number 7, which ends with exit code 3."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        self.asked.append((what, fields))
        return {"submit": {"job": 7}, "wait": {"code": "3"}}[what]


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "note", lambda *_: None)
    (tmp_path / "job.sh").write_text(SCRIPT)
    return Controller()


@pytest.mark.parametrize(
    ("words", "printed", "code", "request_of"),
    [
        (["job.sh"], "Submitted batch job 7\n", 0, {"command": "HERE/job.sh", "arguments": [], "name": "tiny"}),
        (
            ["--parsable", "job.sh", "a", "b c"],
            "7\n",
            0,
            {"command": "HERE/job.sh a b c", "arguments": ["a", "b c"], "script": SCRIPT},
        ),
        (["--quiet", "--job-name=own", "job.sh"], "", 0, {"name": "own"}),
        (["--wait", "job.sh"], "Submitted batch job 7\n", 3, {"name": "tiny"}),
        (
            ["--wrap", "echo hi"],
            "Submitted batch job 7\n",
            0,
            {
                "command": "(null)", "arguments": [], "name": "wrap",
                "script": "#!/bin/sh\n# This script was created by sbatch --wrap.\n\necho hi\n",
            },
        ),
    ],
)  # fmt: skip
def test_job_is_submitted_with_its_command_and_printed_as_asked(
    words: list[str],
    printed: str,
    code: int,
    request_of: dict[str, Any],
    controller: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sbatch(controller, words) == code
    assert capsys.readouterr().out == printed
    assert [what for what, _ in controller.asked] == ["submit", *(["wait"] if code else [])]
    request = controller.asked[0][1]["request"]
    expected = {name: value.replace("HERE", str(tmp_path)) if name == "command" else value
                for name, value in request_of.items()}  # fmt: skip
    assert {name: request[name] for name in request_of} == expected
    assert controller.asked[-1] in (("wait", {"job": "7"}), controller.asked[0])
