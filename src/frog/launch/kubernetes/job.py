"""The manifests that ask a cluster for a run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from frog.config import RunConfig
from frog.core.errors import ConfigError, UsageError
from frog.launch.kubernetes.wish import LONGEST_NAME, Kind, Wish
from frog.launch.kubernetes.yamltext import load_documents, reads_as_itself

CONFIG_PATH = "/config"
WORK_PATH = "/workspace"
PORT = 29500
_GRACE_S = 120
_LARGEST_CONFIG_MAP = 1 << 20


def render(wish: Wish, kind: Kind) -> str:
    """The manifests as YAML that can be read line by line.

    Raises:  UsageError if a name or a number is not one that Kubernetes takes; ConfigError if the run cannot be in
    that world or its files are too large.
    """
    _check(wish)
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("frog.launch.kubernetes"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters |= {"scalar": _scalar, "block": _block, "ljust": lambda value, width: str(value).ljust(width)}
    text = templates.get_template(f"{kind}.yaml.jinja").render(_values(wish))
    for document in load_documents(text):
        if document["kind"] == "ConfigMap" and document["data"] != dict(wish.files):
            raise AssertionError("the ConfigMap does not hold the files")
    return text


def _values(wish: Wish) -> dict[str, Any]:
    settings = [word for setting in wish.settings for word in ("--set", setting)]
    return {
        "wish": wish,
        "name": wish.job_name,
        "claim": wish.claim or "frog-work",
        "config": CONFIG_PATH,
        "work": WORK_PATH,
        "port": PORT,
        "grace_s": _GRACE_S,
        "run": f"{WORK_PATH}/runs/{wish.config.name}",
        "program": ["-m", "frog.train", f"{CONFIG_PATH}/{wish.run_file}", "--continue", *settings],
        "threads": max(1, wish.cpus_per_pod // wish.ranks_per_node),
    }


def _check(wish: Wish) -> None:
    for option, count in (
        ("--nodes", wish.nodes),
        ("--ranks-per-node", wish.ranks_per_node),
        ("--cpus", wish.cpus_per_pod),
        ("--restarts", wish.restarts + 1),
    ):
        if count < 1:
            raise UsageError(f"{option} {count - (option == '--restarts')}: too small")
    for option, text in (
        ("--name", wish.job_name),
        ("--namespace", wish.namespace),
        ("--claim", wish.claim),
        ("--storage-class", wish.storage_class),
        ("--runtime", wish.runtime),
    ):
        _check_name(option, text)
    for option, text in (("--storage", wish.storage), ("--memory", wish.memory_per_pod)):
        if not re.fullmatch(r"\d+(\.\d+)?(|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)", text):
            raise UsageError(f"{option} {text}: not an amount that Kubernetes reads", f"{option} 64Gi")
    if not re.fullmatch(r"[\w.-]+(:\d+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", wish.image):
        raise UsageError(f"--image {wish.image}: not the name of an image", "--image registry.example.org/frog:0.1.0")
    wish.config.check_world(wish.nodes * wish.ranks_per_node)
    size = sum(len(name) + len(text.encode()) for name, text in wish.files.items())
    if size > _LARGEST_CONFIG_MAP:
        raise ConfigError(
            f"the run's files have {size} bytes, and a ConfigMap holds {_LARGEST_CONFIG_MAP}",
            "put the large one on the volume, and name it with --set",
        )


def _check_name(option: str, text: str | None) -> None:
    longest = LONGEST_NAME if option == "--name" else 63
    if text is not None and (not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text) or len(text) > longest):
        raise UsageError(
            f"{option} {text}: Kubernetes takes lower-case letters, digits and '-', {longest} at most",
            f"{option} my-run",
        )


def _scalar(value: object) -> str:
    """A value as YAML on one line. Plain where YAML reads the plain text as the same text, else quoted."""
    if isinstance(value, str):
        plain = re.fullmatch(r"[\w./=,+@:$()-]+", value)
        if plain and reads_as_itself(value):
            return value
    return json.dumps(value)


def _block(text: str, indent: int) -> str:
    """A text as a YAML block that can be read; quoted where a block would change it."""
    lines = text.split("\n")
    block = "|\n" + "\n".join(" " * indent + line if line else "" for line in lines[:-1])
    odd = text[:1] in (" ", "\n", "\t") or not text.endswith("\n") or text.endswith("\n\n")
    return json.dumps(text) if odd or not re.fullmatch(r"[\t\n\x20-\x7e\u00a0-\ud7ff]*", text) else block


def read_files(run_file: Path, config: RunConfig) -> tuple[dict[str, str], list[str]]:
    """The files that a run needs beside its data, by name, and the settings with which it finds them in one folder."""
    wanted = {"model.file": run_file.parent / config.source.file}
    if config.strategy.implementation == "deepspeed":
        named = config.strategy.deepspeed_file or f"config/deepspeed_{config.strategy.name}.json"
        wanted["strategy.deepspeed_file"] = Path(named)
    paths = [run_file, *wanted.values()]
    if len({path.name for path in paths}) < len(paths):
        raise ConfigError(f"two files of one name: {', '.join(map(str, paths))}", "rename one: they share a folder")
    texts: dict[str, str] = {}
    for path in paths:
        try:
            texts[path.name] = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
    settings = []
    if config.source.file != wanted["model.file"].name:
        settings.append(f"model.file={wanted['model.file'].name}")
    if "strategy.deepspeed_file" in wanted:
        settings.append(f"strategy.deepspeed_file={CONFIG_PATH}/{wanted['strategy.deepspeed_file'].name}")
    return texts, settings


def with_settings(first: Sequence[str], then: Sequence[str]) -> tuple[str, ...]:
    """Settings in order, the user's first; ours win for what lies in another place in a pod."""
    ours = {text.partition("=")[0] for text in then}
    return (*(text for text in first if text.partition("=")[0].strip() not in ours), *then)
