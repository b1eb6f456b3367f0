"""What the commands of the planner print, and the folder of a simulated run, word by word and number by number.

Other tests compare single numbers with published or hand-computed ones. Here no line may change unnoticed. After a
change that is meant: FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/plan/test_kept_texts.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frog.cli import main
from frog.core.runs.folder import RunFolder

TEXTS, RUNS = Path(__file__).with_name("texts.json"), Path(__file__).with_name("simulated_runs.json")
CONFIG = Path(__file__).parents[2] / "config"
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
COSTS = 'price = "2 USD/h"\nstorage = "20 GB/s"\nnode_mtbf = "20000 h"\nnode_power = "10.2 kW"'
CLUSTER = f'gpu = "H100-80GB"\ngpus_per_node = 8\nnvlink_domain = 8\nnetwork = "3200 Gbit/s"\n{COSTS}\n'
TABLE = (
    "row_id,gpu,n_gpus,layers,hidden,heads,seq_len,global_batch,dp,tp,pp,precision,step_time_s\n"
    "a,A100-80GB,16,40,5120,40,2048,256,4,4,1,bf16,9.1\nb,A100-80GB,16,40,5120,40,2048,256,4,4,1,nvfp4,9.1\n"
)
MIXTURE = {
    **json.loads((CONFIG / "llama3_8b.json").read_text()), "model_type": "mixtral", "num_hidden_layers": 8,
    "hidden_size": 1024, "intermediate_size": 2048, "num_local_experts": 16, "num_experts_per_tok": 4,
}  # fmt: skip
PLAN = "plan llama.json --cluster h100x8 --nodes 4"
COMMANDS = (
    f"{PLAN} --tp 4 --pp 2 --virtual-stages 2 --micro-batch 1 --global-batch 64 --explain",
    f"{PLAN} --zero 3 --software fsdp --recompute full --explain",
    f"{PLAN} --cp 2 --tp 2 --recompute selective --tokens 1e12 --explain",
    "plan mixture.json --cluster h100x8 --nodes 4 --ep 8 --global-batch 256 --explain",
    "plan llama.json --cluster costs.toml --nodes 16 --tp 8 --pp 2 --schedule zero_bubble --tokens 15e12 --explain",
    "plan llama.json --cluster a100x8 --nodes 1 --zero 0 --micro-batch 4",
    f"{PLAN} --tp 4 --precision fp8 --tokens 1e12 --json",
    "plan search llama.json --cluster h100x8 --nodes 2 --tokens 1e12 --to planned",
    "plan search mixture.json --cluster a100x8 --nodes 1 --global-batch 64",
    "plan simulate llama.json --cluster h100x8 --nodes 2 --tp 2 --pp 4 --global-batch 16 --jitter 0.02 --slow 9:1.5",
    "plan simulate llama.json --cluster h100x8 --nodes 2 --zero 3 --global-batch 16 --slow-network 1:4 --steps 2",
    "plan predict table.csv",
    "strategies --model llama.json --world 8",
    "strategies --model mixture.json --world 4 --json",
)


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = {}
    for path in (TEXTS, RUNS):
        known |= json.loads(path.read_text()) if path.exists() else {}
    yield known
    if REWRITE:
        for path, names in ((TEXTS, COMMANDS), (RUNS, SIMULATED)):
            path.write_text(json.dumps({name: known[name] for name in names}, indent=1, ensure_ascii=False) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with the files that the commands name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "llama.json").write_text((CONFIG / "llama3_8b.json").read_text())
    (tmp_path / "mixture.json").write_text(json.dumps(MIXTURE))
    (tmp_path / "costs.toml").write_text(CLUSTER)
    (tmp_path / "table.csv").write_text(TABLE)
    return tmp_path


def compare(name: str, found: Any, kept: dict[str, Any]) -> None:
    if REWRITE:
        kept[name] = found
    assert found == kept[name], "if the change is meant, rewrite the kept texts: see above"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_of_a_plan_changes_unnoticed(
    command: str, folder: Path, kept: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    out = capsys.readouterr().out
    if "--json" in command:
        out = json.dumps(_rounded(json.loads(out)), indent=2)
    lines = [line.rstrip() for line in out.splitlines()]
    for path in sorted((folder / "planned").iterdir()) if "--to planned" in command else ():
        lines += [f"==> {path.name}", *path.read_text().splitlines()]
    compare(command, lines, kept)


SMALL = "plan simulate small.json --cluster h100x8 --software megatron --micro-batch 1 --to run"
SIMULATED = (
    f"{SMALL} --gpus 4 --tp 2 --pp 2 --global-batch 2 --steps 1",
    f"{SMALL} --gpus 16 --tp 8 --pp 2 --global-batch 2 --steps 2 --lose 9@2",
    f"{SMALL} --gpus 2 --zero 3 --global-batch 4 --steps 1 --jitter 0.1 --seed 3",
    f"{SMALL} --gpus 16 --tp 8 --global-batch 2 --steps 2 --cut 1@2",
    f"{SMALL} --gpus 4 --pp 2 --zero 1 --virtual-stages 2 --global-batch 4 --steps 1 --slow 1:2",
)


@pytest.mark.parametrize("command", SIMULATED)
def test_no_event_of_a_simulated_run_changes_unnoticed(
    command: str, folder: Path, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each eight ranks the first three; the clock stands still."""
    model = json.loads((CONFIG / "llama3_8b.json").read_text())
    (folder / "small.json").write_text(json.dumps({**model, "num_hidden_layers": 4}))
    monkeypatch.setattr("time.time_ns", lambda: 2 * 10**18)
    monkeypatch.setattr("sys.argv", ["frog", *shlex.split(command)])
    assert main(shlex.split(command)) == 0
    run = RunFolder(folder / "run")
    found = {}
    for path in sorted(run.path.rglob("*.json*")):
        name = path.relative_to(run.path).as_posix()
        number = "".join(filter(str.isdigit, name))
        if not number or int(number) % 8 < 3:
            found[name] = [_plain(json.loads(line)) for line in _documents(path)]
    compare(command, found, kept)


def _documents(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


def _plain(event: dict[str, Any]) -> str:
    """Return an event as one line, without what differs between machines and versions."""
    kept = {name: _rounded(value) for name, value in sorted(event.items()) if name not in ("versions", "format")}
    return json.dumps(kept)


def _rounded(value: Any) -> Any:
    """Return the value with nine digits in each number: the last ones depend on the machine."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
