"""Kubernetes manifests for a run or a program: the request, the checks, and the rendered YAML."""

from __future__ import annotations

import base64
import functools
import io
import os
import re
import shlex
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from frog import __version__
from frog.cluster.kubernetes.manifest_text import (
    block,
    is_key,
    is_label,
    is_object_name,
    is_service_name,
    load_documents,
    quoted,
    scalar,
)
from frog.cluster.submit.submitted_work import (
    ProgramWork,
    Work,
    find_program_files,
    is_text,
    named_files,
    strategy_settings,
)
from frog.core.config import RunConfig
from frog.core.errors import ConfigError, UsageError
from frog.observe.environment import HOOK

if TYPE_CHECKING:
    import jinja2

Kind = Literal["job", "trainjob"]

LONGEST_NAME: Mapping[Kind, int] = {
    "job": 63 - len("-9999-xxxxx"),
    "trainjob": 63 - len("-node-0-9999-xxxxx"),
}
"""Longest name of a Job: its pods' names are longer, and a host name has at most 63 characters."""


CONFIG_PATH = "/config"
WORK_PATH = "/workspace"
PORT = 29500
_GRACE_S, _PROGRAM_GRACE_S = 120, 60
_LARGEST_CONFIG_MAP = 1 << 20
_AMOUNT = re.compile(r"[0-9]+(\.[0-9]+)?(|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)")
_IMAGE = re.compile(r"[\w.-]+(:[0-9]+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII)
PROGRAM_PATH = "/program"
OBSERVER_PATH = "/observer"
OBSERVER_ZIP = "observer.zip"
_OBSERVER = ("sitecustomize.py", "frog_observer")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of the archive's entries, so that equal files give an equal archive."""


@dataclass(frozen=True)
class KubernetesRequest:
    """The request of one submission."""

    config: Work
    """The run, or a program."""
    files: Mapping[str, str]
    """Files of the ConfigMap: the run file and the files it names, by name; or those of the program, by path."""
    run_file: str = ""
    data: tuple[str, ...] = ()
    """Files that a program's command names and that the volume must have."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE for --set."""
    nodes: int = 2
    ranks_per_node: int = 4
    gpus: bool = True
    image: str = f"frog:{__version__}"
    namespace: str = "default"
    name: str | None = None
    claim: str | None = None
    """An existing volume claim; None to create one."""
    storage: str = "50Gi"
    storage_class: str | None = None
    cpus: int | None = None
    memory: str | None = None
    restarts: int = 3
    runtime: str = "torch-distributed"
    command: str = ""
    """The command line that made the request, for the file's first line."""

    @property
    def program(self) -> ProgramWork | None:
        """The program; None for a run of Frog's trainer."""
        return self.config if isinstance(self.config, ProgramWork) else None

    @property
    def job_name(self) -> str:
        """A name that Kubernetes accepts for a Job of either kind."""
        if self.name is not None:
            return self.name
        plain = re.sub(r"[^a-z0-9]+", "-", self.config.name.lower()).strip("-")
        return f"frog-{plain}"[: min(LONGEST_NAME.values())].rstrip("-")

    @property
    def cpus_per_pod(self) -> int:
        cpus_per_rank = 8 if self.gpus else 1
        return self.ranks_per_node * cpus_per_rank if self.cpus is None else self.cpus

    @property
    def memory_per_pod(self) -> str:
        gib_per_rank = 32 if self.gpus else 2
        return f"{self.ranks_per_node * gib_per_rank}Gi" if self.memory is None else self.memory


def render(request: KubernetesRequest, kind: Kind) -> str:
    """Return the manifests as readable YAML.

    Raises:  UsageError if Kubernetes does not accept a name or a number; ConfigError if the run does not fit that
    world or its files are too large.
    """
    _check_request(request, kind)
    template = f"{kind}.yaml.jinja" if request.program is None else f"program_{kind}.yaml.jinja"
    text = _templates().get_template(template).render(_template_values(request))
    for document in load_documents(text):
        if document["kind"] == "ConfigMap" and [*document.get("data", {}).values()] != [*request.files.values()]:
            raise AssertionError("the ConfigMap does not contain the files")
    return text


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("frog.cluster.submit"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters |= {"scalar": scalar, "quoted": quoted, "block": block}
    templates.filters["ljust"] = lambda value, width: str(value).ljust(width)
    return templates


def _template_values(request: KubernetesRequest) -> dict[str, Any]:
    # Kubernetes reads $(NAME) as a variable and $$ as one $.
    settings = [word for setting in request.settings for word in ("--set", setting.replace("$", "$$"))]
    program = {
        "program": ["-m", "frog.train", f"{CONFIG_PATH}/{request.run_file}", "--continue", *settings],
        "run": f"{WORK_PATH}/runs/{request.config.name}",
    }
    return {
        "request": request,
        "name": request.job_name,
        "claim": request.claim or "frog-work",
        "config": CONFIG_PATH,
        "work": WORK_PATH,
        "port": PORT,
        "program_path": PROGRAM_PATH,
        "observer_path": OBSERVER_PATH,
        "grace_s": _GRACE_S if request.program is None else _PROGRAM_GRACE_S,
        "threads": max(1, request.cpus_per_pod // request.ranks_per_node),
        **(program if request.program is None else _program_values(request)),
    }


def _check_request(request: KubernetesRequest, kind: Kind) -> None:
    _check_names(request, kind)
    for option, text in (("--storage", request.storage), ("--memory", request.memory_per_pod)):
        if not _AMOUNT.fullmatch(text):
            raise UsageError(f"{option} {text}: not a Kubernetes quantity", f"{option} 64Gi")
    if not _IMAGE.fullmatch(request.image):
        raise UsageError(f"--image {request.image}: not a valid image name", "--image registry.example.org/frog:0.1.0")
    for setting in request.settings:
        if any("\ud800" <= letter <= "\udfff" for letter in setting):
            raise UsageError(f"--set {setting!a}: not UTF-8", "write it in UTF-8, the encoding of YAML")
    if request.program is not None:
        _check_size(request, _LARGEST_CONFIG_MAP)
    if not isinstance(request.config, RunConfig):
        return
    request.config.check_world(request.nodes * request.ranks_per_node)
    size = sum(len(name) + len(text.encode()) for name, text in request.files.items())
    if size > _LARGEST_CONFIG_MAP:
        raise ConfigError(
            f"the run's files have {size} bytes, but a ConfigMap holds at most {_LARGEST_CONFIG_MAP}",
            "put the large file on the volume and name it with --set",
        )


def _check_names(request: KubernetesRequest, kind: Kind) -> None:
    longest = LONGEST_NAME[kind]
    if not is_service_name(request.job_name) or len(request.job_name) > longest:
        raise UsageError(
            f"--name {request.job_name}: must be lower-case letters, digits and '-', starting with a letter, for a "
            f"{kind} at most {longest} characters",
            "--name my-run",
        )
    if not is_label(request.namespace):
        raise UsageError(f"--namespace {request.namespace}: must be at most 63 lower-case letters, digits and '-'")
    others = {"--claim": request.claim, "--storage-class": request.storage_class, "--runtime": request.runtime}
    for option, name in others.items():
        if name is not None and not is_object_name(name):
            raise UsageError(f"{option} {name}: must be lower-case letters, digits, '-' and '.'")
    for name in request.files:
        if request.program is None and not is_key(name):
            raise ConfigError(
                f"{name}: a file name in a ConfigMap has only letters, digits, '-', '_' and '.'", "rename the file"
            )


def read_files(run_file: Path, config: RunConfig) -> tuple[dict[str, str], list[str]]:
    """Return the run's files other than its data, by name, and the settings with which it finds them in one folder."""
    named = named_files(run_file, config)
    texts: dict[str, str] = {}
    for path in (run_file, *named.values()):
        try:
            texts[path.name] = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
    model = named["model.file"]
    settings = [] if config.source.file == model.name else [f"model.file={model.name}"]
    return texts, settings + strategy_settings(named, CONFIG_PATH)


def with_settings(first: Sequence[str], then: Sequence[str]) -> tuple[str, ...]:
    """Return the settings in order, the user's first; later ones override paths that differ in a pod."""
    ours = {text.partition("=")[0] for text in then}
    return (*(text for text in first if text.partition("=")[0].strip() not in ours), *then)


@dataclass(frozen=True)
class PodFile:
    """A file of the program: its path in the working folder, its key in the ConfigMap, and its text."""

    path: str
    key: str
    text: str


def read_program(work: ProgramWork, include: Sequence[str], folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the program's files by path, and the files that its command names and the volume must have.

    Raises:  UsageError if a file is missing, lies outside of the folder or is not text.
    """
    script = work.file
    if script is not None and Path(script).is_absolute():
        if (inner := Path(os.path.relpath(script, folder))).is_file() and ".." not in inner.parts:
            raise UsageError(f"{script}: an absolute path means a file of the image", f"-- {inner}: a file to send")
        script = None
    files = find_program_files(work.words_after_python, script, include, folder)
    for name in files.sent:
        if not name.isprintable():
            raise UsageError(f"{name!r}: a file's name must be one line of printable characters", "rename the file")
        if not is_text(folder / name):
            raise UsageError(f"{name}: not text in UTF-8, so a ConfigMap cannot contain it", "put it on the volume")
    return {name: (folder / name).read_text(encoding="utf-8") for name in files.sent}, files.data


def _program_values(request: KubernetesRequest) -> dict[str, Any]:
    """Return what the template needs to start the program. Kubernetes reads $$ as one $."""
    assert request.program is not None
    files = _with_keys(request.files)
    folders = sorted({str(PurePosixPath(file.path).parent) for file in files} - {"."})
    return {
        "files": files,
        "copied": _as_shell(file.path for file in files),
        "folders": _as_shell(folders),
        "words": [word.replace("$", "$$") for word in request.program.torchrun_words],
        "observer": base64.b64encode(_observer_archive()).decode() if request.program.observer else None,
        "executable": any(word == "--no-python" for word in request.program.torchrun_words[:1]),
        "data": request.data,
    }


def _check_size(request: KubernetesRequest, most_bytes: int) -> None:
    """Raise ConfigError if the program's files do not fit into a ConfigMap next to the observer."""
    size = sum(len(name) + len(text.encode()) for name, text in request.files.items())
    size += len(_observer_archive()) if request.program and request.program.observer else 0
    if size > most_bytes:
        sizes = sorted(((len(text.encode()), name) for name, text in request.files.items()), reverse=True)
        biggest = ", ".join(f"{name} ({number:,} bytes)" for number, name in sizes[:3])
        raise ConfigError(
            f"the program's files have {size:,} bytes, but a ConfigMap holds at most {most_bytes:,}: {biggest}",
            "put large files on the volume, or the program into the image: -- python /app/my.py",
        )


def _with_keys(files: Mapping[str, str]) -> list[PodFile]:
    """Return the files with unique keys, which may not contain slashes."""
    pod_files: list[PodFile] = []
    taken = {OBSERVER_ZIP}
    for path, text in files.items():
        plain = key = re.sub(r"[^-._a-zA-Z0-9]+", "_", path.replace("/", ".")).lstrip(".")[:200] or "file"
        number = 1
        while key in taken:
            number += 1
            key = f"{plain}-{number}"
        taken.add(key)
        pod_files.append(PodFile(path, key, text))
    return pod_files


def _as_shell(words: Iterable[str]) -> str:
    return shlex.join(words).replace("$", "$$")


def _observer_archive() -> bytes:
    """Return the observer's code as a zip archive, from which Python can import."""
    # no manifest starts what is in folders of the observer
    files = (path for name in _OBSERVER for path in (HOOK / name, *sorted((HOOK / name).glob("*.py"))))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            if path.is_file():
                info = zipfile.ZipInfo(path.relative_to(HOOK).as_posix(), _EPOCH)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, path.read_bytes())
    return buffer.getvalue()
