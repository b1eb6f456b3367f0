"""The manifests that describe a run for Kubernetes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from frog.cluster.kubernetes.names import is_key, is_label, is_object_name, is_service_name
from frog.cluster.kubernetes.yamltext import block, load_documents, quoted, scalar
from frog.cluster.submit.kubernetes_program import OBSERVER_PATH, PROGRAM_PATH, check_size, program_values
from frog.cluster.submit.kubernetes_request import LONGEST_NAME, Kind, KubernetesRequest
from frog.cluster.submit.runfiles import named_files, strategy_settings
from frog.core.config import RunConfig
from frog.core.errors import ConfigError, UsageError

CONFIG_PATH = "/config"
WORK_PATH = "/workspace"
PORT = 29500
_GRACE_S, _PROGRAM_GRACE_S = 120, 60
_LARGEST_CONFIG_MAP = 1 << 20
_AMOUNT = re.compile(r"[0-9]+(\.[0-9]+)?(|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)")
_IMAGE = re.compile(r"[\w.-]+(:[0-9]+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII)


def render(request: KubernetesRequest, kind: Kind) -> str:
    """Return the manifests as readable YAML.

    Raises:  UsageError if Kubernetes does not accept a name or a number; ConfigError if the run does not fit that
    world or its files are too large.
    """
    _check(request, kind)
    name = f"{'' if request.program is None else 'program_'}{kind}.yaml.jinja"
    text = _templates().get_template(name).render(_values(request))
    for document in load_documents(text):
        if document["kind"] == "ConfigMap" and [*document.get("data", {}).values()] != [*request.files.values()]:
            raise AssertionError("the ConfigMap does not contain the files")
    return text


@functools.cache
def _templates() -> jinja2.Environment:
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


def _values(request: KubernetesRequest) -> dict[str, Any]:
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
        **(program if request.program is None else program_values(request)),
    }


def _check(request: KubernetesRequest, kind: Kind) -> None:
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
        check_size(request, _LARGEST_CONFIG_MAP)
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
