"""The files of a search: a run file with its model, what the user's program reads, a cluster profile for `frog submit`,
and the page of `page.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from frog.core.config.load import load_model_config, parse_run_config
from frog.core.errors import ConfigError, UsageError
from frog.core.files import write_atomic
from frog.core.schema import parse_toml
from frog.plan.estimate.rows import PlannedRun
from frog.plan.plan_text import layout_words
from frog.plan.search.best import Candidate, SearchResult
from frog.plan.search.page import front_page
from frog.plan.search.program_files import PROGRAM_FILES, NotExpressibleError, program_files

_TRIED = 300
"""Layouts to try for one that Frog itself can train."""
_GIB = 2**30
_PAGE = "front.html"


def check_folder(folder: Path) -> None:
    """Raise UsageError if a folder has files of the user that a search would overwrite, or is a file."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--to {folder}: is a file", "name a folder")
    names = ("config.json", "run.toml", "cluster.toml", *PROGRAM_FILES)
    there = [name for name in names if (folder / name).exists()]
    if there and not (folder / _PAGE).exists():
        raise UsageError(
            f"--to {folder}: {' and '.join(there)} would be overwritten, which no search wrote", "choose another folder"
        )


def write_files(
    folder: Path,
    result: SearchResult,
    for_frog: SearchResult | None,
    of_program: tuple[str, SearchResult] | None,
    config: Mapping[str, Any] | None,
    cluster_name: str,
    steps: int,
) -> list[str]:
    """Write what the search found into a folder. Return lines that say what is there, and how to submit it.

    for_frog: the result of a search for Frog's own program, which needs more memory than others; None for adapters and
        packed documents, which a run file does not state.
    of_program: another program's name, and the result of a search for layouts that its options can state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / _PAGE, front_page(result, cluster_name))
    lines = [f"{folder / _PAGE}: the front of time and memory"]
    if config is None:
        return [*lines, "no run file: the search was not for a config.json"]
    if of_program is not None:
        lines += _write_program(folder, *of_program, config, cluster_name, steps)
    write_atomic(folder / "config.json", json.dumps(dict(config), indent=2) + "\n")
    if for_frog is None:
        return lines
    try:
        load_model_config(folder / "config.json")
    except ConfigError as problem:
        return [*lines, f"no run file: Frog does not train this model: {problem.what}"]
    for candidate in islice(for_frog.others(), _TRIED):
        if (text := run_file(candidate, folder, cluster_name, steps)) is not None:
            write_atomic(folder / "run.toml", text)
            write_atomic(folder / "cluster.toml", slurm_profile(candidate.run, cluster_name))
            return [*lines, *_submit_lines(folder, candidate, steps)]
    return [*lines, "no run file: of the fastest layouts that fit, Frog itself can train with none"]


def _write_program(
    folder: Path, software: str, result: SearchResult, config: Mapping[str, Any], cluster_name: str, steps: int
) -> list[str]:
    """Write what a program reads for the fastest layout that its options can state; return lines that say so."""
    why = "none of the layouts that its options can state fits"
    for candidate in islice(result.others(), _TRIED):
        try:
            files = program_files(software, candidate, config, folder, steps, cluster_name)
        except NotExpressibleError as problem:
            why = str(problem)
            continue
        for name, text in files.texts.items():
            write_atomic(folder / name, text)
        write_atomic(folder / "cluster.toml", slurm_profile(candidate.run, cluster_name))
        written = " and ".join(str(folder / name) for name in files.texts)
        return [
            f"{written}: {layout_words(candidate.run)}: {_numbers(candidate)} with {software}",
            f"set yourself: {'; '.join(files.notes)}",
            _submit_line(folder, candidate, steps, "", f" -- {files.command}"),
        ]
    return [f"no file for {software}: {why}"]


def _submit_lines(folder: Path, candidate: Candidate, steps: int) -> list[str]:
    return [
        f"{folder / 'run.toml'}: {layout_words(candidate.run)}: {_numbers(candidate)} with Frog's own program",
        _submit_line(folder, candidate, steps, f" {folder / 'run.toml'}", ""),
    ]


def _numbers(candidate: Candidate) -> str:
    return f"{candidate.step_s:#.4g} s, {candidate.memory / _GIB:.1f} GiB"


def _submit_line(folder: Path, candidate: Candidate, steps: int, run_file: str, program: str) -> str:
    nodes = candidate.run.layout.num_gpus // candidate.run.cluster.gpus_per_node
    options = f"--to slurm --profile {folder / 'cluster.toml'} --nodes {nodes}"
    return f"submit it: frog submit{run_file} {options} --time {time_limit(steps * candidate.step_s)}{program}"


def time_limit(seconds: float) -> str:
    """Return a time limit for Slurm in whole hours, a tenth more than a prediction."""
    days, hours = divmod(math.ceil(1.1 * seconds / 3600), 24)
    return f"{days}-{hours:02}:00:00"


def run_file(candidate: Candidate, folder: Path, cluster_name: str, steps: int) -> str | None:
    """Return a run file for a layout; None if Frog cannot train with it."""
    layout = candidate.run.layout
    if layout.expert_tp is not None or layout.recompute_layers is not None:
        return None
    strategy: dict[str, Any] = {"name": ("ddp", "zero1", "zero2", "zero3")[layout.zero]}
    strategy |= {name: size for name in ("tp", "pp", "cp", "ep") if (size := getattr(layout, name)) > 1}
    if layout.zero_group:
        strategy["shard"] = layout.shard
    if layout.pp > 1:
        strategy["schedule"] = "interleaved" if layout.virtual_stages > 1 else "1f1b"
    if layout.virtual_stages > 1:
        strategy["virtual_stages"] = layout.virtual_stages
    sections: dict[str, dict[str, Any]] = {
        "model": {"file": "config.json"},
        "data": {"name": "python-docs", "sequence_length": layout.seq_len},
        "train": {
            "steps": steps,
            "global_batch_size": layout.global_batch,
            "grad_accum": layout.num_micro,
            "precision": layout.precision,
            "activation_checkpointing": layout.recompute == "full",
            "device": "cuda",
        },
        "strategy": strategy,
    }
    parts = [
        f"# {layout_words(candidate.run)}: predicted on {layout.num_gpus} GPUs of {cluster_name} are",
        f"# {candidate.step_s:#.4g} s a step and {candidate.memory / _GIB:.1f} GiB, if kernels are as fast as others'.",
        '# Replace the data set by your own: frog data list. Written by "frog plan search".',
        f'name = "{folder.name or "planned"}"',
    ]
    for section, values in sections.items():
        parts += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    text = "\n".join(parts) + "\n"
    try:
        config = parse_run_config(parse_toml(text), folder / "run.toml")
    except ConfigError:
        return None
    return None if config.world_problems(layout.num_gpus) else text


def slurm_profile(run: PlannedRun, cluster_name: str) -> str:
    """Return a cluster profile for `frog submit` with the GPUs of a node."""
    per_node = run.cluster.gpus_per_node
    return (
        f'description = "{per_node} x {run.cluster.gpu.name} in each node, planned as {cluster_name}"\n'
        'check = ["partition, account and time limit of your site: config/clusters/generic.toml shows the settings"]\n'
        f"gpus_per_node = {per_node}\ncpus_per_gpu = 8\n"
    )
