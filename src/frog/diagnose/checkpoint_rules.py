"""Rules about checkpoints: which are damaged on disk, and which a start of the run has passed over."""

from __future__ import annotations

import re
from dataclasses import dataclass

from frog.core.errors import CheckpointError
from frog.core.manifest import read_manifest, verify_files
from frog.diagnose.diagnosis import Diagnosis
from frog.diagnose.evidence import Evidence
from frog.diagnose.rank_rules import damage_kind, damaged_rank

_PASSED_OVER = "passed over: "


@dataclass(frozen=True)
class Damage:
    """A checkpoint that cannot be trusted."""

    step: int
    problem: str
    """Which file, and how it differs from its manifest."""
    file: str
    """Where that is said; "the file itself" if it is on disk still."""

    @property
    def kind(self) -> str:
        return damage_kind(self.problem)

    @property
    def rank(self) -> int | None:
        return damaged_rank(self.problem)


def find_damage(evidence: Evidence) -> list[Damage]:
    """Checkpoints that are damaged now, and those that were passed over when the run was resumed."""
    found: dict[tuple[int, str], Damage] = {}
    for step in evidence.folder.checkpoint_steps():
        folder = evidence.folder.checkpoint(step)
        try:
            verify_files(folder, read_manifest(folder))
        except (CheckpointError, OSError) as error:
            problem = error.what if isinstance(error, CheckpointError) else str(error)
            found[step, damage_kind(problem)] = Damage(step, problem, "the file itself, compared with manifest.json")
    for rank in evidence.folder.event_ranks():
        path = evidence.folder.rank_log(rank)
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        for problem in (line.partition(_PASSED_OVER)[2] for line in lines if _PASSED_OVER in line):
            if match := re.search(r"step_(\d{8})", problem):
                damage = Damage(int(match[1]), problem, f"logs/rank_{rank}/train.log, as the run was resumed")
                found.setdefault((damage.step, damage.kind), damage)
    return sorted(found.values(), key=lambda damage: damage.step)


def with_damage(found: Diagnosis, damage: list[Damage]) -> Diagnosis:
    """Take damaged checkpoints into a diagnosis: the one that a rank died over is the fault itself."""
    for one in damage:
        if found.fault in ("kill", "gone", "node") and (found.step, found.phase) == (one.step, "checkpoint"):
            found = _died_over(found, one)
        elif found.fault not in ("corrupt", "torn") or found.step != one.step:
            found = found.with_more(also=(*found.also, of_checkpoint(one)))
    return found


def of_checkpoint(damage: Damage) -> Diagnosis:
    """A damaged checkpoint by itself."""
    what = "a byte or more of it changed" if damage.kind == "corrupt" else "part of it is missing"
    return Diagnosis(
        damage.kind,
        f"the checkpoint of step {damage.step} cannot be trusted: {what} ({damage.problem})",
        rank=damage.rank,
        step=damage.step,
        phase="checkpoint",
        evidence=(_line(damage),),
        advice="it is passed over when the run is resumed; an older one is used. A disk that fails (`dmesg`, "
        "`smartctl -a`), a quota, a copy that was broken off?",
    )


def _died_over(found: Diagnosis, damage: Damage) -> Diagnosis:
    own = of_checkpoint(damage)
    return found.with_more(
        _line(damage),
        fault=damage.kind,
        finding=f"{own.finding}; {found.finding}",
        advice=f"{own.advice}\n{found.advice}",
        rank=found.rank if damage.rank is None else damage.rank,
    )


def _line(damage: Damage) -> str:
    return f"{'':12}  {damage.problem}  [{damage.file}]"
