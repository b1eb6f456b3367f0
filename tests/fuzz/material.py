"""A folder with a valid file of every kind that Frog reads, created by Frog's commands."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from evidence_material import write_evidence
from harness import LIMIT_S

from frog.core.files import write_json
from frog.core.units import time_text
from frog.learn.grader.verdict import Verdict
from frog.learn.progress import (
    DrillResult,
    Progress,
    QuizResult,
    update_progress,
    with_drill,
    with_quiz,
    with_verdict,
)
from frog.measure.peers.buffers import write_buffer
from frog.train.comm.collectives.cost import Costs

ROOT = Path(__file__).parents[2]

_SMALL = (
    "train.steps=4", "train.global_batch_size=4", "data.name=tiny", "data.sequence_length=16", "checkpoint.every=2",
    "eval.every=2", "eval.tokens=64", "eval.sample_tokens=4", "model.hidden_size=16", "model.intermediate_size=32",
    "model.num_hidden_layers=1", "model.num_attention_heads=2", "model.num_key_value_heads=2", "model.vocab_size=300",
)  # fmt: skip
_FIRST_NODE = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --time=10
DATA=$TMPDIR/corpus
cp -r $SCRATCH/corpus $DATA
tar xf wheels.tar -C /dev/shm/wheels
python3 -m venv ${SLURM_TMPDIR}/env
podman build -t frog .
srun podman run frog python train.py --data $DATA --wheels /dev/shm/wheels --env $SLURM_TMPDIR/env
"""
_SETS = [word for setting in _SMALL for word in ("--set", setting)]


def make_material(folder: Path) -> None:
    """Create all files that the targets read in `folder`, the current folder of every case."""
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "config", folder / "config")
    _write_texts(folder)
    _frog(folder, "data", "prepare", "--corpus", "corpus/one.txt", "--name", "tiny", "--vocab-size", "300")
    _frog(folder, "run", "--nproc", "2", "--", "train", "config/demo.toml", "--set", "name=one", *_SETS)
    _frog(
        folder, "finetune", "one", "--data", "labelled.jsonl", "--name", "tuned", "--epochs", "1", "--max-length", "8"
    )
    _frog(folder, "export", "one", "--to", "hf", "hf")
    _frog(folder, "bundle", "config/demo.toml", "--to", "bundle", "--no-wheels", *_SETS)
    _frog(folder, "profile", "config/demo.toml", "--steps", "1", "--name", "profiled", *_SETS)
    _write_of_collectives(folder)
    write_evidence(folder)
    _frog(folder, "learn", "init", "course")
    _frog(folder / "course", "learn", "predict", "blind-guess", "10.8")
    _frog(folder / "course", "learn", "hint", "1.1")
    update_progress(folder / "course", _with_more)
    _frog(folder / "course", "learn", "export", "../reports/ada.json")
    for record in ("one", "tuned"):
        failed = {"format": 2, "status": "failed", "step": 3, "ended": "2026-01-01T00:00:00+00:00"}
        error = {"type": "CommError", "message": "all_reduce failed", "rank": 1, "step": 3}
        (folder / "runs" / record / "attempt.json").write_text(json.dumps({**failed, "error": error}))
    shutil.rmtree(folder / "course/.git", ignore_errors=True)


def _with_more(progress: Progress) -> Progress:
    """Create files that otherwise need a check, a quiz, or a failing run."""
    exercise = "lab1/01_shift_labels"
    wrong = Verdict(exercise=exercise, status="rejected", misconception="not-shifted", seed=3, seconds=1.0)
    right = Verdict(exercise=exercise, status="passed", predicted={"blind-guess": 10.8249}, seed=4, seconds=1.0)
    progress = with_verdict(with_verdict(progress, wrong), right)
    quiz = QuizResult(lab=1, at=time_text(), seed=3, asked=4, right=2, beliefs=("a step is a micro-batch",))
    drill = DrillResult(at=time_text(), seed=3, fault="kill rank=1 step=3 phase=reduce", right=2)
    return with_drill(with_quiz(progress, quiz), drill)


def _write_texts(folder: Path) -> None:
    (folder / "corpus").mkdir()
    text = "".join(f"The frog number {n % 17} jumps over stone {n}.\n\n" for n in range(1200))
    (folder / "corpus/one.txt").write_text(text)
    (folder / "corpus/two.md.gz").write_bytes(gzip.compress(text[:5000].encode()))
    (folder / "corpus/three.py").write_text('"""A pond."""\n\nFROGS = 3\n')
    rows = "".join(json.dumps({"text": f"frog {n}", "label": ("wet", "dry")[n % 2]}) + "\n" for n in range(24))
    (folder / "corpus/four.jsonl").write_text(rows)
    (folder / "labelled.jsonl").write_text(rows)
    (folder / "reports").mkdir()
    shutil.copytree(ROOT / "labs/lab1/01_shift_labels", folder / "labs/lab1/01_shift_labels")
    run_file = (folder / "config/demo.toml").read_text().partition("[train]")[0].replace("python-docs", "tiny")
    (folder / "config/small.toml").write_text(
        run_file.replace("sequence_length = 64", "sequence_length = 16")
        + "[train]\nsteps = 2\nglobal_batch_size = 2\n[eval]\ntokens = 64\nsample_tokens = 4\n"
    )
    shutil.copytree(ROOT / "tests/cluster/jobfile/right", folder / "jobs")
    (folder / "jobs/first_node.sbatch").write_text(_FIRST_NODE)
    shutil.copytree(ROOT / "src/frog/learn/demo/sessions", folder / "sessions")
    shutil.copy(ROOT / "labs/lab1/quiz.toml", folder / "labs/lab1/quiz.toml")
    _write_clusters(folder / "clusters")
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").write_text("#!/bin/true\n")
    (folder / ".venv/bin/python").chmod(0o755)
    (folder / "heads.txt").write_text("0123456789ab Ada Lovelace\n")
    (folder / "faults.toml").write_text('[[fault]]\nkind = "kill"\nrank = 1\nstep = 3\nphase = "reduce"\n')


def _write_clusters(folder: Path) -> None:
    about = {"format": 1, "kind": "emulator", "port": 4000, "token": "abc", "pid": 99, "cluster": "frog01234567"}
    write_json(folder / "emulated/cluster.json", about)
    site = {
        "name": "frog-01234567", "folder": "/nowhere", "scratch": "/tmp/frog-slurm-x", "host": "a",
        "address": "127.0.0.1", "user": "me", "ports": [4000, 4001, 4002], "first_job": 1,
    }  # fmt: skip
    shape = {"nodes": 2, "gpus_per_node": 0, "cpus_per_node": 2}
    write_json(folder / "real/cluster.json", {"format": 1, "kind": "slurm", "site": site, "shape": shape})


def _write_of_collectives(folder: Path) -> None:
    """Create checkpoints, graded results, and a run that seems open for joining but has ended."""
    write_json(folder / "cache/collectives.json", {"format": 1, **asdict(Costs())})
    write_buffer(folder / "peer.out", np.arange(7))
    run = json.loads((folder / "runs/one/run.json").read_text())
    run["config"]["comm"]["on_loss"] = "shrink"
    write_json(folder / "runs/open/run.json", run)
    endpoint = {"format": 1, "identity": 0, "host": "127.0.0.1", "port": 9, "secret": "ab"}
    write_json(folder / "runs/open/join_endpoint.json", endpoint)


def _frog(folder: Path, *words: str, wanted: tuple[int, ...] = (0,)) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "frog.cli", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode not in wanted:
        raise RuntimeError(f"frog {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
