# ruff: noqa: E501
"""Targets: commands and readers, each with the files that it reads and that a case may damage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from frog.core.errors import FrogError


@dataclass(frozen=True)
class Target:
    """A command of `frog`, and patterns of the files that it reads, below the current folder."""

    words: str
    """Command line; `{text}` is replaced by a damaged version of `good`."""
    files: tuple[str, ...]
    folder: str = "."
    """Current folder of the command."""
    names: str | None = None
    """Folder or file named by the command, which may get a hostile name."""
    writes: tuple[str, ...] = ()
    """Prefixes of the paths that the command may write."""
    share: int = 1
    """Weight in the random choice of targets."""
    good: str = "3"
    is_job: bool = False
    """True if it prints a job file, which then runs in a shell that finds no programs."""
    read: Callable[[Path, str], Any] | None = None
    """Reader that replaces the command; it receives the file and a hostile text."""


_RUN = ("runs/one/*.json", "runs/one/events/*", "runs/one/heartbeats/*", "runs/one/logs/*/*")
_PROGRAM = ("runs/program/*.json", "runs/program/events/*", "runs/program/logs/*/*", "runs/program/observed/*/*/*")
_EVIDENCE = ("evidence/*", "evidence/attempt_0/1/*")
_KEPT = ("runs/one/*.json", "runs/one/checkpoints/*/*")
_TUNED = ("runs/tuned/*.json", "runs/tuned/adapter/*", "runs/one/run.json", "runs/one/tokenizer.json")
_COURSE = ("course/progress.json", "course/exercises/lab1/01*/*", "course/exercises/lab2/01*/*", "course/progress.json")


def _strategies(path: Path, text: str) -> None:
    from frog.core.config.load import load_run_config

    load_run_config(path, [f"train.steps={text}", f"model.hidden_size={text}"])


def _faults(path: Path, text: str) -> None:
    from frog.core.config.faults import Scene, load_faults, parse_faults

    load_faults(path, Scene(4, 10, 5, 5))
    parse_faults([text, f"kill rank={text} step=3"])


def _manifest(path: Path, text: str) -> None:
    from frog.cluster.kubernetes.manifest import read_manifest

    read_manifest(path)


def _trace(path: Path, text: str) -> None:
    from frog.core.runs.folder import RunFolder
    from frog.train.profile.numbers import read_profile

    read_profile(RunFolder(Path("runs/profiled")))


def _labelled(path: Path, text: str) -> None:
    from frog.train.data.labelled import read_labelled

    read_labelled(str(path), 0.2)


def _deepspeed(path: Path, text: str) -> None:
    from frog.core.config.deepspeed import read_deepspeed

    read_deepspeed(path)


def _slurm_words(path: Path, text: str) -> None:
    """Parse the emulator's notations, with hostile text as each option's value."""
    from frog.cluster.emulator import command_options as options
    from frog.cluster.emulator import notation
    from frog.cluster.emulator.sbatch import make_request, parse_dependency
    from frog.cluster.slurm_options import SBATCH

    readers: tuple[Callable[[], Any], ...] = (
        lambda: notation.expand_hosts(text), lambda: notation.parse_array(text), lambda: notation.parse_signal(text),
        lambda: notation.parse_time_limit(text), lambda: notation.parse_moment(text), lambda: parse_dependency(text),
        lambda: options.memory_mb({"mem": text}, "mem"), lambda: options.read_script(f"#!/bin/sh\n#SBATCH {text}"),
        lambda: options.check_patterns({"output": text}), lambda: notation.fill_pattern(f"%{text}j", {"j": "1"}),
        lambda: make_request(options.read_words("sbatch", ["--nodelist", text, "--time", text], SBATCH)[0], default_name="x"),
        lambda: make_request(options.read_words("sbatch", ["--nodes", text, "-n", text], SBATCH)[0], default_name="x"),
    )  # fmt: skip
    for read in readers:
        try:
            read()
        except (FrogError, ValueError):
            continue


def _notations(path: Path, text: str) -> None:
    """Parse hostile text as values of `frog` options."""
    from frog.core.config.finetune import parse_lora
    from frog.launch.network.link import parse_network
    from frog.launch.nodes import parse_nodes
    from frog.learn.quantity import parse_quantity
    from frog.observe.view.merged_logs import parse_since

    readers: tuple[Callable[[], Any], ...] = (
        lambda: parse_lora(text), lambda: parse_lora(f"rank={text}"), lambda: parse_quantity(text, "B"),
        lambda: parse_network(text), lambda: parse_network(f"rate={text}"), lambda: parse_nodes(text),
        lambda: parse_nodes(f"{text}x{text}"), lambda: parse_since(text, 0.0),
    )  # fmt: skip
    for read in readers:
        try:
            read()
        except FrogError:
            continue


def _costs(path: Path, text: str) -> None:
    """Read the file that `frog collectives tune` writes."""
    from frog.train.comm.collectives.cost import saved_costs

    with mock.patch.dict(os.environ, {"FROG_CACHE_DIR": str(path.parent)}):
        saved_costs()


def _peer_result(path: Path, text: str) -> None:
    """Read the result of a program under `frog collectives check`."""
    from frog.measure.peers.buffers import read_buffer

    read_buffer(path, "int64", 7)


def _join_endpoint(path: Path, text: str) -> None:
    """Try to join at an endpoint where no process listens."""
    import torch

    from frog.core.env import world_env
    from frog.train.comm.collectives.errors import CollectiveError
    from frog.train.comm.elastic.membership import join_membership

    with contextlib.suppress(CollectiveError, FileNotFoundError):
        join_membership(world_env(), torch.device("cpu"), 0.2, path)


def _exercise(path: Path, text: str) -> None:
    from frog.learn.grader.exercise import find_exercises

    find_exercises(Path("labs"))


def _cluster(path: Path, text: str) -> None:
    from frog.cluster.simulated_cluster import EmulatorFile, SlurmFile, read_cluster_file

    if not path.exists():  # no cluster exists in this case
        return
    read_cluster_file(path.parent, SlurmFile if path.parent.name == "real" else EmulatorFile)


def _session(path: Path, text: str) -> None:
    from frog.core.schema import convert, read_toml
    from frog.learn.demo.demo_session import Session

    if path.exists():  # the file is part of the project
        convert(read_toml(path), Session, str(path))


def _questions(path: Path, text: str) -> None:
    from frog.learn.quiz.pool import read_pools

    read_pools(Path("labs"))


TARGETS = (
    Target("runs", _RUN, names="runs/one", share=3),
    Target("report one", _RUN, names="runs/one", share=3, writes=("runs/one/report.html", "runs/one/.report")),
    Target("diagnose one", _RUN, names="runs/one", share=4),
    Target("diagnose one --json", _RUN),
    Target("diagnose {text}", _RUN, good="runs/one"),
    Target("diagnose program", _PROGRAM, names="runs/program", share=3),
    Target("diagnose evidence", _EVIDENCE, names="evidence", share=4),
    Target("diagnose evidence --json", _EVIDENCE),
    Target("diagnose runs/one/logs/rank_0/train.log runs/program", _PROGRAM, share=2),
    Target("diagnose --explain-log runs/one/logs/rank_0/train.log", _RUN, names="runs/one/logs/rank_0/train.log", share=2),
    Target("compare one tuned", _RUN, names="runs/one", share=2),
    Target("logs one", _RUN, names="runs/one", share=3),
    Target("logs one --grep {text}", _RUN, good="step"),
    Target("logs one --since {text}", _RUN, good="10:51"),
    Target("tensorboard one", _RUN, writes=("runs/one/tensorboard",)),
    Target("checkpoints one", _KEPT, names="runs/one", share=3),
    Target("sample one --tokens 3 --prompt {text}", _KEPT, share=3, good="The frog"),
    Target("eval one --tokens 40", (*_KEPT, "data/tiny/*"), share=3, writes=("data/.tiny.",)),
    Target("export one --to hf out", _KEPT, names="runs/one", writes=("out", ".out")),
    Target("export tuned --to hf out --merge", _TUNED, writes=("out", ".out")),
    Target("classify tuned --text {text}", _TUNED, share=3, good="frog"),
    Target("classify tuned", _TUNED),
    Target("import hf --from hf --name {text}", ("hf/*",), names="hf", share=3, writes=("runs",), good="new"),
    Target("data list", ("data/tiny/*.json",), names="data/tiny", share=2, writes=("data/.tiny.",)),
    Target("data inspect tiny", ("data/tiny/*",), names="data/tiny", share=3, writes=("data/.tiny.",)),
    Target("data inspect tiny --verify", ("data/tiny/*", "data/.tiny.verified.json"), writes=("data/.tiny.",)),
    Target("data prepare --corpus corpus --name {text} --vocab-size 300", ("corpus/*",), share=2, writes=("data",), good="tiny"),
    Target("data prepare --corpus corpus/two.md.gz --name new --vocab-size 300", ("corpus/two.md.gz",), names="corpus/two.md.gz", writes=("data",)),
    Target("strategies --model config/demo.toml", ("config/demo.toml", "config/config.json"), names="config/demo.toml", share=3),
    Target("strategies --model config/config.json --json", ("config/config.json",)),
    Target("schedule --stages {text} --micro-batches {text}", ("config/demo.toml",)),
    Target("submit --to slurm --dry-run --profile config/clusters/generic.toml config/demo.toml",
           ("config/clusters/generic.toml", "config/demo.toml", "config/config.json"), share=3, is_job=True),
    Target("submit --to slurm --dry-run --profile config/clusters/marenostrum5.toml config/small.toml --account {text}",
           ("config/clusters/marenostrum5.toml",), good="me", is_job=True),
    Target("submit --to slurm --dry-run config/small.toml --partition {text} --qos {text} --time {text}", ("config/small.toml",), good="3", is_job=True),
    Target("submit --to slurm --dry-run config/small.toml --set name={text}", ("config/small.toml",), good="me", is_job=True),
    Target("submit --to slurm --dry-run --bundle bundle config/demo.toml", ("bundle/bundle.json", "bundle/config/*", "bundle/config/*/*"), is_job=True),
    Target("submit --to kubernetes --dry-run --image {text} config/demo.toml", ("config/demo.toml", "config/config.json"), good="frog:1"),
    Target("submit --to kubernetes --dry-run --image frog:1 --name {text} --namespace {text} --claim {text} --memory {text} config/small.toml", ("config/small.toml",), good="pond"),
    Target("submit --to kubernetes --dry-run --image frog:1 --include {text} -- ./jobs/accelerate.sbatch {text}", ("jobs/accelerate.sbatch",), good="jobs"),
    Target("bundle --to out --no-wheels --exclude {text} -- ./jobs/accelerate.sbatch {text}", ("jobs/accelerate.sbatch",), good="data", writes=("out", ".out")),
    Target("bundle --check bundle", ("bundle/*", "bundle/*/*", "bundle/*/*/*"), names="bundle", share=2),
    Target("slurm explain -", ("jobs/accelerate.sbatch",)),
    Target("slurm explain config/slurm_example.sbatch", ("config/slurm_example.sbatch",), names="config/slurm_example.sbatch"),
    Target("slurm explain jobs", ("jobs/*",), share=5),
    Target("slurm explain jobs --json", ("jobs/*",)),
    Target("slurm explain jobs --traps --nodes {text} --time {text}", ("jobs/*",), good="2"),
    Target("slurm explain config/slurm_example.sbatch --profile config/clusters/generic.toml", ("config/clusters/generic.toml",)),
    Target("learn", _COURSE, folder="course", names="course/exercises/lab1/01_shift_labels", writes=("course/",)),
    Target("learn list", _COURSE, folder="course", writes=("course/",)),
    Target("learn progress", _COURSE, folder="course", writes=("course/",)),
    Target("learn export mine.json", (*_COURSE, "runs/one/record.json"), folder="course", names="runs/one", writes=("course/",)),
    Target("learn hint {text}", _COURSE, folder="course", writes=("course/",), good="1.1"),
    Target("learn solution 1.1 --give-up", _COURSE, folder="course", writes=("course/",)),
    Target("learn reset 1.1", _COURSE, folder="course", writes=("course/",)),
    Target("learn predict blind-guess {text}", _COURSE, folder="course", writes=("course/",), good="7"),
    Target("drill --seed {text}", ("course/progress.json",), folder="course", writes=("course/",), share=2),
    Target("learn dev new lab1/{text} --labs labs", ("labs/lab1/*/manifest.toml",), good="99_new", writes=("labs/",)),
    Target("quiz 1 --seed 3 --count 4", ("course/progress.json",), folder="course", writes=("course/",), share=2),
    Target("class reports", ("reports/*",), names="reports/ada.json", share=3, writes=("class.html", ".class.html")),
    Target("class reports --pseudonyms", ("reports/*",), share=2, writes=("class.html", ".class.html")),
    Target("class reports --heads heads.txt", ("heads.txt",), names="heads.txt", writes=("class.html", ".class.html")),
    Target("chaos --fault {text} --nproc 2 -- train config/small.toml --nonsense", ("config/small.toml",), good="kill rank=1 step=3"),
    Target("faults.toml", ("faults.toml",), read=_faults, good="kill rank=1 step=3"),
    Target("manifest", ("config/kubernetes/*",), read=_manifest, share=3),
    Target("trace", ("runs/profiled/profile/*", "runs/profiled/*.json"), read=_trace, share=2),
    Target("labelled", ("labelled.jsonl",), read=_labelled),
    Target("deepspeed", ("config/deepspeed_*.json",), read=_deepspeed),
    Target("overrides", ("config/demo.toml",), read=_strategies, share=2),
    Target("slurm words", ("config/slurm_example.sbatch",), read=_slurm_words, share=3, good="node[1-4]"),
    Target("notations", ("heads.txt",), read=_notations, share=2, good="rate=10mbit"),
    Target("exercises", ("labs/lab1/01_shift_labels/manifest.toml",), read=_exercise),
    Target("questions", ("labs/lab1/quiz.toml",), read=_questions),
    Target("session", ("sessions/*",), read=_session),
    Target("cluster", ("clusters/*/cluster.json",), read=_cluster),
    Target("costs", ("cache/collectives.json",), read=_costs),
    Target("peer result", ("peer.out",), read=_peer_result),
    Target("join endpoint", ("runs/open/join_endpoint.json",), read=_join_endpoint),
)  # fmt: skip

_TRAINS = ("runs/", "data", "logs")

PROCESSES = (
    Target("train --resume one", (*_KEPT, "data/tiny/*"), share=3, writes=_TRAINS),
    Target("train config/small.toml", ("config/small.toml", "config/config.json", "data/tiny/*"), share=2, writes=_TRAINS),
    Target("train config/small.toml --set name={text}", ("data/tiny/*",), writes=_TRAINS, good="new"),
    Target("train config/small.toml --set strategy.name=zero2 --set strategy.implementation=deepspeed", ("config/deepspeed_zero2.json",), writes=_TRAINS),
    Target("finetune one --data labelled.jsonl --name {text} --epochs 1 --max-length 8", ("labelled.jsonl", "runs/one/run.json"), writes=_TRAINS, good="new"),
    Target("learn check 1.1", _COURSE, folder="course", writes=("course/",), share=2),
    Target("diagnose one", _RUN),
    Target("join open --timeout {text}", ("runs/open/*",), writes=_TRAINS, good="0"),
    Target("runs", _RUN, names="runs/one"),
    Target("run --from config/kubernetes/job-cpu.yaml", ("config/kubernetes/job-cpu.yaml",), writes=("runs/", "volumes", "data", "logs")),
    Target("data prepare --corpus corpus --name {text} --vocab-size 300", ("corpus/*",), writes=("data",), good="new"),
)  # fmt: skip
"""Targets that run as a user starts them, each in its own process with limited memory."""
