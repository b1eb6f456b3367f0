"""A planted bug is found by the right rule at the right line, and the same program without it is not accused."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S, Harness
from observe.check.planted_programs import CASES, Case
from observe.check.test_silent_bugs import CASES as SILENT_BUGS

from frog.observe.check.answers import RULES, answers_of, broken_rules
from frog.observe.check.rank_records import read_records
from frog.observe.check.rule import Answer
from frog.observe.environment import environment

PROGRAMS = Path(__file__).parent / "planted_programs.py"


@pytest.fixture(scope="module")
def records(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all programs in one world."""
    folder = tmp_path_factory.mktemp("planted")
    harness.run("frog", "run", "--nproc", "2", "--threads", "1", "--", str(PROGRAMS), str(folder))
    return folder


def broken(records: Path, case: Case, which: str) -> list[Answer]:
    return broken_rules(answers_of(read_records(records / case.name / which)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted_bug_is_found_at_its_line(records: Path, case: Case) -> None:
    lines, first = inspect.getsourcelines(case.where or case.program)
    line = next(number for number, text in enumerate(lines, start=first) if "# bug" in text)
    answer = broken(records, case, "bug")[0]
    assert answer.broken is not None
    assert answer.broken.line is not None
    found = answer.rule.name, answer.broken.sure, Path(answer.broken.line.file).name, answer.broken.line.line
    assert found == (case.rule, case.sure, PROGRAMS.name, line)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_program_without_its_bug_is_not_accused(records: Path, case: Case) -> None:
    answers = [answer for answer in broken(records, case, "right") if answer.broken is not None]
    assert [answer for answer in answers if answer.broken.sure != "possible" or answer.rule.name == case.rule] == []


def test_every_rule_has_a_planted_bug() -> None:
    planted = {case.rule for case in [*CASES, *SILENT_BUGS]}
    assert {rule.name for rule in RULES} <= planted


TRAINS = """
import hashlib, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.randn(32, 1))
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        torch.nn.functional.mse_loss(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
parts = [each.detach().numpy().tobytes() for each in net.parameters()] + [torch.get_rng_state().numpy().tobytes()]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


@pytest.mark.slow
def test_recording_changes_neither_a_number_nor_a_random_state(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    observed = {**environment(tmp_path, hooks=("frog_observer", "frog_observer.checks")), "FROG_CHECK": "1"}
    found = [
        subprocess.run(
            [sys.executable, str(script)],
            env={"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1", **changes},
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        ).stdout
        for changes in ({}, observed)
    ]
    assert found[0] == found[1]
    record = read_records(tmp_path)[0]
    assert (len(record.steps), record.stopped) == (8, "")
    assert all(step.gradients is not None for step in record.steps)
