"""Cluster profiles: the facts about a cluster that a job file needs, read from a TOML file and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frog.cluster.slurm_options import SBATCH, read_options, time_limit_s
from frog.core.config.load import build_section, list_problems
from frog.core.config.project import shipped_file
from frog.core.errors import ConfigError
from frog.core.schema import read_toml, shortened
from frog.core.user_input import nearest

CLUSTERS = Path("config/clusters")
DEFAULT_PROFILE = "generic"

_TEXT_LISTS = ("modules", "directives", "check")
_IN_JOB_FILES = ("name", "partition", "account", "qos", "python", "container", "scratch", "modules", "directives")
"""Fields whose texts appear in job files, like the values of the environment."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EXPANDS = re.compile(r"([^$`\"\\]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*")
"""A text in which a shell expands variables and finds no command to run."""
_SLURM_NAME = re.compile(r"[A-Za-z0-9_.,@+-]+")


@dataclass(frozen=True)
class Limits:
    """Limits of one QOS: [limits.NAME]."""

    max_time: str | None = None
    max_nodes: int | None = None


@dataclass(frozen=True)
class ClusterProfile:
    """One cluster. A missing field means that the job file does not set it and Slurm's default applies."""

    name: str
    description: str = ""
    source: str = ""
    """Source of these facts, and the date when they were looked up."""
    check: tuple[str, ...] = ()
    """Checks for the user to make before the first job."""

    partition: str | None = None
    account: str | None = None
    account_required: bool = False
    """True if the cluster requires --account."""
    qos: str | None = None
    max_time: str | None = None
    max_nodes: int | None = None
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Limits of each QOS that differs from the two above."""

    gpus_per_node: int = 0
    """0 for a cluster without GPUs."""
    gpu_option: str = "gpus-per-node"
    """`gpus-per-node`, or `gres` if the site requires --gres=gpu:N."""
    cpus_per_gpu: int | None = None
    """CPUs per rank, also without GPUs. If missing, one CPU: Slurm's default for a whole node."""
    directives: tuple[str, ...] = ()
    """Additional #SBATCH options, such as "--exclusive"."""

    modules: tuple[str, ...] = ()
    """Modules for `module load`, in order."""
    container: str | None = None
    """An Apptainer image with Python and Frog."""
    python: str = ".venv/bin/python"
    """The Python that has Frog, as a path from the project's folder or inside the container."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to export."""
    scratch: str | None = None
    """A fast folder that all nodes share, used for caches; may contain $SLURM_JOB_ACCOUNT and $USER. Here and in
    `container` the shell expands variables ($NAME and ${NAME}) and runs no commands."""
    network: bool = True
    """True if compute nodes reach the internet."""

    def problems(self) -> list[str]:
        """Return every rule that this profile violates."""
        problems = [
            f"{name}={value}: must be at least {least}"
            for name, value, least in (
                ("gpus_per_node", self.gpus_per_node, 0),
                ("cpus_per_gpu", self.cpus_per_gpu, 1),
                ("max_nodes", self.max_nodes, 1),
            )
            if value is not None and value < least
        ]
        if self.gpu_option not in ("gpus-per-node", "gres"):
            problems.append(f"gpu_option={self.gpu_option!r}: must be 'gpus-per-node' or 'gres'")
        if self.modules and self.container:
            problems.append(f"modules={self.modules} and container={self.container!r}: a job uses one or the other")
        times = {"max_time": self.max_time}
        times |= {f"limits.{name}.max_time": limits.max_time for name, limits in self.limits.items()}
        problems += [f"{name}={text!r}: must be a time such as '12:00:00'" for name, text in times.items()
                  if text is not None and not _is_time(text)]  # fmt: skip
        for text in self.directives:
            asked, used = read_options([(word, 0) for word in text.split()], SBATCH)
            wrong = [f"{item.written}: {item.problem}" for item in asked if item.problem]
            if wrong or used < len(text.split()) or not asked:
                problems.append(f"directives: {text!r}: {wrong[0] if wrong else 'not an option of sbatch'}")
        wrong_names = [name for name in self.environment if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
        return (
            problems
            + [f"environment.{name}: not a valid variable name" for name in wrong_names]
            + self._text_problems()
        )

    def _text_problems(self) -> list[str]:
        """Return the values that would add a line or a command to a job file."""
        texts = [(f"environment.{name}", text) for name, text in self.environment.items()]
        for name in _IN_JOB_FILES:
            value = getattr(self, name)
            texts += [(name, text) for text in ((value,) if isinstance(value, str) else value or ())]
        problems = [f"{name}={text!r}: must be one line, without control characters" for name, text in texts
                 if _CONTROL.search(text)]  # fmt: skip
        problems += [
            f'{name}={value!r}: may contain $NAME or ${{NAME}}, but no other $, `, " or \\: job files run them'
            for name in ("container", "scratch")
            if (value := getattr(self, name)) is not None and not _EXPANDS.fullmatch(value)
        ]
        return problems + [
            f"{name}={value!r}: not a valid name"
            for name in ("partition", "account", "qos")
            if (value := getattr(self, name)) is not None and not is_slurm_name(value)
        ]

    def max_time_s(self, qos: str | None) -> int | None:
        """Return the longest time in seconds that a job may request under that QOS; None if the profile has none."""
        limits = self.limits.get(qos or self.qos or "")
        text = limits.max_time if limits and limits.max_time else self.max_time
        return time_limit_s(text) if text else None

    def max_nodes_of(self, qos: str | None) -> int | None:
        """Return the largest number of nodes that a job may request under that QOS; None if the profile has none."""
        limits = self.limits.get(qos or self.qos or "")
        return limits.max_nodes if limits and limits.max_nodes else self.max_nodes


def is_slurm_name(text: str) -> bool:
    """True if the text can be an account, a partition or a QOS, or several of them joined by commas."""
    return _SLURM_NAME.fullmatch(text) is not None


def load_profile(name: str, clusters: Path = CLUSTERS) -> ClusterProfile:
    """Load the profile of that name from config/clusters/, or the file `name` if it ends in .toml.

    Raises:  ConfigError that lists every mistake, or the existing profiles.
    """
    path = profile_path(name, clusters)
    try:
        table = read_toml(path, ConfigError, "correct that file, or name another profile")
    except FileNotFoundError:
        raise _absent(name, path, clusters) from None
    return parse_profile(table, path)


def profile_path(name: str, clusters: Path = CLUSTERS) -> Path:
    """Return the path of a profile: in the project's folder, or else the one that comes with Frog."""
    if name.endswith(".toml"):
        return Path(name)
    own, shipped = clusters / f"{name}.toml", shipped_file(f"{CLUSTERS}/{name}.toml")
    return shipped if clusters == CLUSTERS and not own.exists() and shipped.exists() else own


def parse_profile(table: Mapping[str, Any], path: Path) -> ClusterProfile:
    """Read a profile from a file's content; errors name `path`."""
    problems: list[str] = []
    plain = {"name": path.stem, **table}
    nested: dict[str, Any] = {}
    for key in _TEXT_LISTS:
        nested[key] = _texts(key, plain.pop(key, []), problems)
    nested["environment"] = _text_table("environment", plain.pop("environment", {}), problems)
    nested["limits"] = _limits(plain.pop("limits", {}), problems)
    profile: ClusterProfile | None = build_section(ClusterProfile, plain, "", problems)
    if profile is not None and not problems:
        profile = replace(profile, **nested)
        problems += profile.problems()
        if not problems:
            return profile
    raise ConfigError(list_problems(path, problems), "correct the lines above; nothing was submitted")


def _texts(key: str, value: object, problems: list[str]) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    problems.append(f"{key}={shortened(repr(value))}: must be a list of strings")
    return ()


def _text_table(key: str, value: object, problems: list[str]) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return dict(value)
    problems.append(f"{key}={shortened(repr(value))}: must be a table, [{key}], of strings")
    return {}


def _limits(value: object, problems: list[str]) -> dict[str, Limits]:
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        problems.append(f"limits={shortened(repr(value))}: must be tables, [limits.NAME], one for each QOS")
        return {}
    built = {name: build_section(Limits, item, f"limits.{name}.", problems) for name, item in value.items()}
    return {name: limits for name, limits in built.items() if limits is not None}


def profile_names(clusters: Path = CLUSTERS) -> list[str]:
    """Return the names of the profiles in config/clusters/, and of those that come with Frog."""
    folders = {clusters, *([shipped_file(str(CLUSTERS))] if clusters == CLUSTERS else [])}
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def _absent(name: str, path: Path, clusters: Path) -> ConfigError:
    known = profile_names(clusters)
    if near := nearest(name, known):
        return ConfigError(f"{path}: no such profile", f"--profile {near}")
    listing = (
        f"one of {', '.join(known)}" if known else "run the command in the project's folder, which has config/clusters/"
    )
    return ConfigError(f"{path}: no such profile", f"{listing}; or your own file: --profile PATH.toml")


def _is_time(text: str) -> bool:
    try:
        time_limit_s(text)
    except ValueError:
        return False
    return True
