"""A Job and its related objects, read from a file: the part of Kubernetes that one machine can provide.

Frog refuses an unsupported field if it would change the result, and lists it in `notes` if it has no effect here.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frog.cluster.kubernetes.fields import Fields, ManifestError
from frog.cluster.kubernetes.names import is_key
from frog.cluster.kubernetes.podspec import PodTemplate, read_template
from frog.cluster.kubernetes.yamltext import load_documents
from frog.core.schema import read_bounded, shortened

_RULE_ACTIONS = ("FailJob", "Ignore", "Count")
_MOST_BYTES, _MOST_SHOWN = 4 << 20, 50
"""Largest size of a manifest, and largest number of listed mistakes. Kubernetes limits an object to 1.5 MiB."""

_MOST_PODS = 100_000
"""Kubernetes' limits for an indexed Job."""


@dataclass(frozen=True)
class Rule:
    """One rule of a podFailurePolicy. Without exit codes it applies to disruptions, which do not occur here."""

    action: str
    codes: tuple[int, ...] | None
    inside: bool = True
    """True if the exit code must be one of `codes`, False if it must not."""

    def matches(self, exit_code: int) -> bool:
        return self.codes is not None and (exit_code in self.codes) == self.inside


@dataclass(frozen=True)
class KubernetesJob:
    name: str
    namespace: str
    completions: int
    parallelism: int
    backoff_limit: int
    deadline_s: int | None
    rules: tuple[Rule, ...]
    template: PodTemplate
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The cluster's identifier of the Job, new for each that is created."""


@dataclass(frozen=True)
class Service:
    """A headless Service, which gives pods their names."""

    name: str
    selector: Mapping[str, str]
    publish_not_ready: bool

    def selects(self, labels: Mapping[str, str]) -> bool:
        return bool(self.selector) and all(labels.get(key) == value for key, value in self.selector.items())


@dataclass(frozen=True)
class ConfigMap:
    """Files and values by key."""

    data: Mapping[str, str]
    binary: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        return [*self.data, *self.binary]

    def content(self, key: str) -> bytes:
        return self.binary[key] if key in self.binary else self.data[key].encode()


@dataclass(frozen=True)
class Claim:
    name: str
    folder: str
    """Its folder on this machine."""


@dataclass
class Manifest:
    """All objects of a file."""

    namespaces: dict[str, str] = field(default_factory=dict)
    """Namespace of each object, by kind and name."""
    jobs: list[KubernetesJob] = field(default_factory=list)
    services: dict[str, Service] = field(default_factory=dict)
    config_maps: dict[str, ConfigMap] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    text: str = ""
    """Content of the file; if it is a pipe, it can be read only once."""

    @property
    def job(self) -> KubernetesJob:
        return self.jobs[0]

    def claim(self, name: str) -> Claim:
        """Return a claim that the manifest creates, or one that it expects to exist."""
        return self.claims.get(name, Claim(name, f"volumes/{name}"))


def read_manifest(path: Path, extra: Sequence[str] = ()) -> Manifest:
    """Read a file; `extra` words are added to the container's arguments.

    Raises:  ManifestError with every mistake of the file.
    """
    try:
        text = read_bounded(path, ManifestError, most_bytes=_MOST_BYTES).decode()
        documents = load_documents(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: cannot be read: {error}") from None
    except ValueError as error:
        raise ManifestError(f"{path}: not valid YAML: {error}", "correct that line") from None
    problems: list[str] = []
    manifest = parse_manifest(documents, problems, extra)
    if not problems:
        _check_together(manifest, problems)
    if problems:
        count = f"{len(problems)} mistakes" if len(problems) > 1 else "a mistake"
        lines = [f"  - {shortened(problem, 500)}" for problem in problems[:_MOST_SHOWN]]
        if len(problems) > _MOST_SHOWN:
            lines.append(f"  ... {len(problems) - _MOST_SHOWN} more")
        raise ManifestError(
            f"{path}: {count}\n" + "\n".join(lines),
            "correct the lines above; nothing was started",
        )
    manifest.text = text
    return manifest


def parse_manifest(documents: Sequence[Any], problems: list[str], extra: Sequence[str] = ()) -> Manifest:
    """Read the objects of a file; add their mistakes to `problems`."""
    manifest = Manifest()
    for document in documents:
        kind = str(document.get("kind")) if isinstance(document, dict) else "document"
        top = Fields(document, kind, problems)
        version = top.text("apiVersion")
        top.text("kind")
        readers = {"Job": "batch/v1", "Service": "v1", "ConfigMap": "v1", "PersistentVolumeClaim": "v1"}
        if kind == "TrainJob":
            top.problem("only Kubeflow's controller can create its pods; render the run with --kind job")
            continue
        if kind not in readers:
            top.problem(f"this kind is not supported on one machine; supported kinds: {', '.join(readers)}")
            continue
        if version != readers[kind]:
            top.problem(f"{version!r}: expected {readers[kind]} for a {kind}", "apiVersion")
        meta = _read_metadata(top)
        manifest.namespaces[f"{kind} {meta.name}"] = meta.namespace
        {
            "Job": _read_job,
            "Service": _read_service,
            "ConfigMap": _read_config_map,
            "PersistentVolumeClaim": _read_claim,
        }[kind](top, meta, manifest)
        top.done()
    if len(manifest.jobs) == 1:
        manifest.job.template.container.args.extend(extra)
    elif not problems:
        problems.append(f"{len(manifest.jobs)} Jobs; must be exactly one")
    return manifest


@dataclass(frozen=True)
class _Metadata:
    name: str
    namespace: str
    annotations: Mapping[str, str]


def _read_metadata(top: Fields) -> _Metadata:
    fields = top.object("metadata")
    name, namespace = fields.name("name"), fields.text("namespace", "default")
    fields.text_map("labels")
    meta = _Metadata(name, namespace, fields.text_map("annotations"))
    fields.done()
    return meta


def _read_job(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    spec = top.object("spec")
    spec.text("completionMode", "NonIndexed", choices=["Indexed"])
    completions = spec.number("completions", least=1, most=_MOST_PODS)
    parallelism = spec.number("parallelism", 1, least=1, most=_MOST_PODS)
    backoff_limit = spec.number("backoffLimit", 6)
    deadline_s = spec.optional_number("activeDeadlineSeconds")
    spec.text("podReplacementPolicy", "Failed", choices=["Failed"])
    policy = spec.object("podFailurePolicy")
    template = read_template(spec.object("template"), manifest.notes)
    rules = tuple(_read_rule(rule, template.container.name) for rule in policy.objects("rules"))
    policy.done()
    if rules and template.restart_policy != "Never":
        policy.problem(f"needs restartPolicy Never; the pods have {template.restart_policy}")
    spec.without_effect("ttlSecondsAfterFinished")
    spec.done()
    manifest.jobs.append(
        KubernetesJob(meta.name, meta.namespace, completions, parallelism, backoff_limit, deadline_s, rules, template)
    )


def _read_rule(rule: Fields, container: str) -> Rule:
    action = rule.text("action", choices=_RULE_ACTIONS)
    for condition in rule.objects("onPodConditions"):
        condition.text("type")
        condition.text("status", "True")
        condition.done()
    if not rule.has("onExitCodes"):
        rule.done()
        return Rule(action, None)
    on = rule.object("onExitCodes")
    rule.done()
    if (name := on.optional_text("containerName")) not in (None, container):
        on.problem(f"{name!r}: the pods' container is {container!r}", "containerName")
    operator = on.text("operator", choices=["In", "NotIn"])
    codes = on.numbers("values")
    on.done()
    return Rule(action, tuple(codes), operator == "In")


def _read_service(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    spec = top.object("spec")
    spec.text("clusterIP", "", choices=["None"])
    selector = spec.text_map("selector")
    publish = spec.flag("publishNotReadyAddresses")
    spec.without_effect("ports", "ipFamilyPolicy")
    spec.done()
    manifest.services[meta.name] = Service(meta.name, selector, publish)


def _read_config_map(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    data, binary = top.text_map("data"), {}
    for key, text in top.text_map("binaryData").items():
        try:
            binary[key] = base64.b64decode("".join(text.split()), validate=True)
        except ValueError:
            top.problem("not base64", f"binaryData.{key}")
    manifest.config_maps[meta.name] = found = ConfigMap(data, binary)
    for key in found.keys:
        if not is_key(key):
            top.problem(f"{key!r}: not a valid key in Kubernetes", "data")
    if both := sorted(set(data) & set(binary)):
        top.problem(f"{both[0]!r}: also in data", "binaryData")
    top.without_effect("immutable")


def _read_claim(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    top.without_effect("spec")
    folder = meta.annotations.get("frog/local-folder", f"volumes/{meta.name}")
    manifest.claims[meta.name] = Claim(meta.name, folder)


def _check_together(manifest: Manifest, problems: list[str]) -> None:
    """Report references between objects that do not match."""
    template = manifest.job.template
    problems += [
        f"{what}: is in the namespace {namespace}, but the Job is in {manifest.job.namespace} and cannot use it"
        for what, namespace in manifest.namespaces.items()
        if namespace != manifest.job.namespace
    ]
    for volume in template.volumes.values():
        files = manifest.config_maps.get(volume.config_map or "")
        if volume.config_map is not None and files is None:
            problems.append(f"volume {volume.name}: no ConfigMap {volume.config_map} in the file")
        for key in volume.items:
            if files is not None and key not in files.keys:
                problems.append(f"volume {volume.name}: ConfigMap {volume.config_map} has no {key}")
    for variable in template.container.env:
        if variable.config_map is not None:
            name, key = variable.config_map
            if name not in manifest.config_maps or key not in manifest.config_maps[name].data:
                problems.append(f"env {variable.name}: no ConfigMap {name} with {key} in the file")
