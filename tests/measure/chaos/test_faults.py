"""The fault language: faults can be written and read back, and all mistakes are reported together."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.core.config.fault_kinds import KINDS
from frog.core.config.faults import Fault, Scene, dump_faults, load_faults, parse_faults
from frog.core.errors import ConfigError
from frog.core.runs.vocabulary import PHASES

SCENE = Scene(world_size=2, steps=4, checkpoint_every=2, eval_every=3, grad_accum=2)


def mistakes(*texts: str, scene: Scene | None = SCENE) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_faults(texts, scene)
    return str(caught.value)


def test_every_kind_belongs_to_phases_of_a_step() -> None:
    assert all(set(kind.phases) <= set(PHASES) and kind.default in kind.phases for kind in KINDS.values())


def test_documentation_has_a_row_for_every_kind() -> None:
    """One row with its effect on the rank, and one with its diagnosis."""
    page = (Path(__file__).parents[3] / "docs" / "measure" / "chaos.md").read_text()
    does, known = (
        part.partition("\n\n")[0] for part in (page.partition("| kind |")[2], page.partition("| fault |")[2])
    )
    for name in KINDS:
        assert f"| `{name}` |" in does
        assert f"`{name}`" in known


def test_words_and_toml_give_equal_faults(tmp_path: Path) -> None:
    texts = ["kill rank=1 step=3", "slow rank=0 step=1 seconds=0.25 phase=data", "nan rank=1 step=2 micro=1 times=2"]
    faults = parse_faults(texts, SCENE)
    assert faults[0] == Fault("kill", 1, 3, "reduce")
    assert faults[1] == Fault("slow", 0, 1, "data", seconds=0.25)
    assert faults[2] == Fault("nan", 1, 2, "backward", micro=1, times=2)
    path = tmp_path / "faults.toml"
    path.write_text(dump_faults(faults))
    assert load_faults(path, SCENE) == faults
    assert parse_faults([str(fault) for fault in faults]) == faults


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_can_be_written_and_read(name: str, tmp_path: Path) -> None:
    for phase in KINDS[name].phases:
        fault = Fault(name, 0, 4, phase)
        assert parse_faults([str(fault)]) == [fault]
        path = tmp_path / "faults.toml"
        path.write_text(dump_faults([fault]))
        assert load_faults(path) == [fault]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil rank=1 step=2", "kil: unknown kind; did you mean kill?"),
        ("kill rank=1 stp=2", "stp: unknown key; did you mean step?"),
        ("kill rank=1", "step: missing"),
        ("kill rank=1 step=2 phase=reduction", "reduction: unknown phase; did you mean reduce?"),
        ("disk rank=1 step=2 phase=reduce", "phase=reduce: disk can only happen in checkpoint"),
        ("kill rank=1 step=2 micro=2 phase=forward", "micro=2: phase forward runs 2 times in a step"),
        ("kill rank=1 step=2 micro=1 phase=reduce", "micro=1: phase reduce runs once in a step"),
        ("cut rank=1 step=2 for_s=x", "for_s=x: must be a number of seconds"),
        ("kill rank=2 step=2", "rank=2: this world has ranks 0 to 1"),
        ("kill rank=1 step=5", "step=5: the run has 4 steps"),
        ("kill rank=1 step=0", "step=0: only phase evaluate runs before step 1"),
        ("torn rank=1 step=3", "step=3: phase checkpoint runs at steps 2, 4"),
        ("stop rank=1 step=2 phase=evaluate", "step=2: phase evaluate runs at steps 0, 3, 4"),
        ("cut rank=1 step=2", "no simulated network to cut"),
        ("midway rank=1 step=2", "--set comm.backend=frog"),
        ("midway rank=1 step=2 signs=1.5", "signs=1.5: must be a whole number of at least 0"),
        ("midway rank=1 step=2 sent_bytes=-1", "sent_bytes=-1: must be a whole number of at least 0"),
        ("slow rank=1 step=2 seconds=-1", "seconds=-1: must be a number of seconds"),
        ("kill rank=one step=2", "rank=one: must be a whole number of at least 0"),
        ("kill rank=1 step=2 times=0", "times=0: must be a whole number of at least 1"),
        ("kill rank=1 step=true", "step=True: must be a whole number"),
        ("kill rank=1 step", "step: must be NAME=VALUE, like step=7"),
        ("", "kind: missing"),
    ],
)
def test_mistake_in_a_fault_is_reported(text: str, words: str) -> None:
    assert words in mistakes(text)


def test_all_mistakes_are_reported_together() -> None:
    message = mistakes("kil rank=1 step=2", "shape rank=7 step=9 phase=zero color=red", "kill rank=0 step=1")
    assert "faults: 5 mistakes" in message
    for words in ("did you mean kill?", "phase=zero: shape", "rank=7", "step=9", "color: unknown key"):
        assert words in message
    assert "`frog chaos list`" in message


def test_nan_fault_is_rejected_after_torch_has_reduced_the_gradient() -> None:
    native = dataclasses.replace(SCENE, native=True)
    assert "use phase=backward" in mistakes("nan rank=1 step=2 phase=reduce", scene=native)
    assert parse_faults(["nan rank=1 step=2"], native)


def test_cut_fault_may_heal() -> None:
    (short,) = parse_faults(["cut rank=1 step=2 after_s=1 for_s=2.5"])
    assert (short.after_s, short.for_s) == (1, 2.5)
    assert str(short) == "cut rank=1 step=2 phase=reduce after_s=1 for_s=2.5"
    assert parse_faults(["cut rank=1 step=2"])[0].for_s is None


def test_world_of_one_rejects_losses() -> None:
    alone = Scene(world_size=1, steps=4, checkpoint_every=2, eval_every=3)
    for name in ("shape", "extra", "missing", "port"):
        assert "a world of one rank" in mistakes(f"{name} rank=0 step=2", scene=alone)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[[fault]\n", "not valid TOML"),
        ("", "contains no [[fault]] tables"),
        ("[[faults]]\nkind='kill'\n", "faults: unknown key; did you mean fault?"),
        ("[[fault]]\nkind=['kill']\nrank=1\nstep=2\n", "['kill']: unknown kind"),
        ("[[fault]]\nkind='kill'\nrank=1\nstep=2\n[[fault]]\nkind='nan'\nrank=1\nstep=9\n", "fault 2: step=9"),
    ],
)
def test_mistakes_in_a_fault_file_are_reported(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_faults(path, SCENE)
    assert words in str(caught.value)


def test_missing_fault_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_faults(tmp_path / "absent.toml")


def test_command_reports_mistakes_without_loading_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom frog.cli import main\ncode = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules\nsys.exit(code)"
    )
    words = ["chaos", "list"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in KINDS)
    words = ["chaos", "--nproc", "2"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 2
    assert "no fault specified" in done.stderr


def test_suggestions_are_limited_for_many_mistakes() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_faults(["kil rank=0 step=1"] * 3000)
    assert str(caught.value).count("did you mean kill") <= 101


def test_fault_in_a_run_of_very_many_steps_is_parsed() -> None:
    scene = Scene(world_size=1, steps=10**15, checkpoint_every=100, eval_every=10**9)
    assert parse_faults(["kill rank=0 step=200 phase=checkpoint", f"kill rank=0 step={10**15} phase=evaluate"], scene)
    with pytest.raises(ConfigError, match=r"phase checkpoint runs at steps 100, 200, 300, .*, 800, …"):
        parse_faults(["kill rank=0 step=150 phase=checkpoint"], scene)
