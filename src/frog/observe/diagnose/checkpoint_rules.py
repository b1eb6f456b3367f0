"""Rules about checkpoints: those damaged on disk, and those that the run skipped when it resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frog.core.errors import CheckpointError, Damage, DamageCause
from frog.core.runs import RecordedRun
from frog.core.runs.manifest import damage_of, read_manifest, verify_files
from frog.observe.diagnose.diagnosis import Diagnosis


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A damaged checkpoint."""

    step: int
    damage: Damage
    file: str
    """The file that reports it; "the file itself" if it is still on disk."""


def find_damage(run: RecordedRun) -> list[DamagedCheckpoint]:
    """Return the checkpoints that are damaged now, and those that the run skipped when it resumed."""
    damaged = [*_on_disk(run), *_passed_over(run)]
    first = {(checkpoint.step, checkpoint.damage.cause): checkpoint for checkpoint in reversed(damaged)}
    return sorted(first.values(), key=lambda each: each.step)


def _on_disk(run: RecordedRun) -> Iterator[DamagedCheckpoint]:
    for step in run.folder.checkpoint_steps():
        folder = run.folder.checkpoint(step)
        try:
            verify_files(folder, read_manifest(folder))
        except (CheckpointError, OSError) as error:
            yield DamagedCheckpoint(step, damage_of(error, step), "the file itself, compared with manifest.json")


def _passed_over(run: RecordedRun) -> Iterator[DamagedCheckpoint]:
    workers = [worker for attempt in run.attempts for worker in attempt.workers.values()]
    for rank, start in ((worker.rank, worker.start) for worker in workers if worker.start):
        for damage in start.passed_over:
            if damage.step is not None:
                yield DamagedCheckpoint(damage.step, damage, f"events/rank_{rank}.jsonl, when the run resumed")


def with_damage(diagnosis: Diagnosis, damaged: list[DamagedCheckpoint]) -> Diagnosis:
    """Add damaged checkpoints to a diagnosis; if a rank failed because of one, that checkpoint is the fault."""
    for checkpoint in damaged:
        in_checkpoint = (diagnosis.step, diagnosis.phase) == (checkpoint.step, "checkpoint")
        if diagnosis.fault in ("kill", "gone", "node") and in_checkpoint:
            diagnosis = _died_over(diagnosis, checkpoint)
        elif diagnosis.fault not in _WORDS or diagnosis.step != checkpoint.step:
            diagnosis = diagnosis.with_more(also=(*diagnosis.also, of_checkpoint(checkpoint)))
    return diagnosis


def of_checkpoint(damaged: DamagedCheckpoint) -> Diagnosis:
    """Return the diagnosis of a damaged checkpoint."""
    what, advice = _WORDS[damaged.damage.cause]
    return Diagnosis(
        damaged.damage.cause,
        f"the checkpoint of step {damaged.step} is damaged: {what} ({damaged.damage})",
        rank=damaged.damage.rank,
        step=damaged.step,
        phase="checkpoint",
        evidence=(_line(damaged),),
        advice=f"a resumed run skips this checkpoint and uses an older one. {advice}",
    )


_DISK = "A disk that fails (`dmesg`, `smartctl -a`), a quota, or an interrupted copy?"
_WORDS: dict[DamageCause, tuple[str, str]] = {
    "corrupt": ("its contents changed", _DISK),
    "torn": ("part of it is missing", _DISK),
    "absent": (
        "the file of a rank is missing",
        "A directory that only one node has (`df .` on each node), a cleanup, or a copy from only some nodes?",
    ),
}
"""Descriptions of damage to a checkpoint, and advice."""


def _died_over(diagnosis: Diagnosis, damaged: DamagedCheckpoint) -> Diagnosis:
    own = of_checkpoint(damaged)
    return diagnosis.with_more(
        _line(damaged),
        fault=damaged.damage.cause,
        finding=f"{own.finding}; {diagnosis.finding}",
        advice=f"{own.advice}\n{diagnosis.advice}",
        rank=diagnosis.rank if damaged.damage.rank is None else damaged.damage.rank,
    )


def _line(damaged: DamagedCheckpoint) -> str:
    return f"{'':12}  {damaged.damage}  [{damaged.file}]"
