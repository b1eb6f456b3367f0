"""A Job and its related objects, read from a file: the part of Kubernetes that one machine can provide.

Frog refuses an unsupported field if it would change the result, and lists it in `notes` if it has no effect here.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.cluster.kubernetes.manifest_text import Fields, ManifestError, is_key, load_documents
from frog.cluster.kubernetes.objects import Claim, ConfigMap, JobSet, KubernetesJob, Manifest, ReplicatedJob, Service
from frog.cluster.kubernetes.published_schemas import refused_by_kubernetes
from frog.cluster.kubernetes.workloads import RUNTIME_KINDS, read_job, read_job_set, read_runtime, read_train_job
from frog.core.schema import read_bounded, shortened

_MOST_BYTES, _MOST_SHOWN = 4 << 20, 50
"""Largest size of a manifest, and largest number of listed mistakes. Kubernetes limits an object to 1.5 MiB."""


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
    if not problems:
        problems += [problem for document in documents for problem in refused_by_kubernetes(document)]
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
    for document in sorted(documents, key=_runtimes_first):
        kind = str(document.get("kind")) if isinstance(document, dict) else "document"
        top = Fields(document, kind, problems)
        version = top.text("apiVersion")
        top.text("kind")
        if kind not in _READERS:
            top.problem(f"this kind is not supported on one machine; supported kinds: {', '.join(_READERS)}")
            continue
        expected, read = _READERS[kind]
        if version != expected and version not in _SAME_FIELDS.get(kind, ()):
            top.problem(f"{version!r}: expected {expected} for a {kind}", "apiVersion")
        meta = _read_metadata(top)
        if kind not in RUNTIME_KINDS:
            manifest.namespaces[f"{kind} {meta.name}"] = meta.namespace
        read(top, meta, manifest)
        top.done()
    if len(manifest.sets) != 1:
        if not problems:
            problems.append(f"{len(manifest.sets)} Jobs, JobSets or TrainJobs; must be exactly one")
    elif extra and len(manifest.job_set.members) > 1:
        problems.append(f"{len(manifest.job_set.members)} replicatedJobs, and only one can take further arguments")
    elif extra and manifest.job_set.jobs:
        manifest.job.template.container.args.extend(extra)  # shared by all its Jobs
    return manifest


def _runtimes_first(document: Any) -> bool:
    """Sort runtimes before the TrainJobs that refer to them."""
    return not (isinstance(document, dict) and document.get("kind") in RUNTIME_KINDS)


@dataclass(frozen=True)
class _Metadata:
    name: str
    namespace: str
    annotations: Mapping[str, str]


def _read_job(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    job = read_job(top.object("spec"), meta.name, meta.namespace, manifest.notes)
    manifest.sets.append(JobSet("Job", meta.name, (ReplicatedJob("", (job,)),)))


def _read_job_set(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    read_job_set(top.object("spec"), "JobSet", meta.name, meta.namespace, manifest)


def _read_runtime(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    manifest.runtimes[meta.name] = read_runtime(top)


def _read_train_job(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    read_train_job(top, meta.name, meta.namespace, manifest.runtimes, manifest)


def _read_metadata(top: Fields) -> _Metadata:
    fields = top.object("metadata")
    name, namespace = fields.name("name"), fields.text("namespace", "default")
    fields.text_map("labels")
    meta = _Metadata(name, namespace, fields.text_map("annotations"))
    fields.done()
    return meta


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
    manifest.config_maps[meta.name] = config_map = ConfigMap(data, binary)
    for key in config_map.keys:
        if not is_key(key):
            top.problem(f"{key!r}: not a valid key in Kubernetes", "data")
    if both := sorted(set(data) & set(binary)):
        top.problem(f"{both[0]!r}: also in data", "binaryData")
    top.without_effect("immutable")


def _read_claim(top: Fields, meta: _Metadata, manifest: Manifest) -> None:
    top.without_effect("spec")
    folder = meta.annotations.get("frog/local-folder", f"volumes/{meta.name}")
    manifest.claims[meta.name] = Claim(meta.name, folder)


_SAME_FIELDS = {"JobSet": ("jobset.x-k8s.io/v1", "jobset.x-k8s.io/v1beta1")}
"""Versions of a kind that have the same fields as the one that Frog was compared with."""
_READERS: Mapping[str, tuple[str, Callable[[Fields, _Metadata, Manifest], None]]] = {
    "Job": ("batch/v1", _read_job),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", _read_job_set),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", _read_train_job),
    **dict.fromkeys(RUNTIME_KINDS, ("trainer.kubeflow.org/v1alpha1", _read_runtime)),
    "Service": ("v1", _read_service),
    "ConfigMap": ("v1", _read_config_map),
    "PersistentVolumeClaim": ("v1", _read_claim),
}
"""The version and the reader of each kind."""


def _check_together(manifest: Manifest, problems: list[str]) -> None:
    """Report references between objects that do not match."""
    if not manifest.job_set.jobs:
        problems.append(f"{manifest.job_set.kind} {manifest.job_set.name}: has no Job to run")
        return
    kind = manifest.job_set.kind
    problems += [
        f"{what}: is in the namespace {namespace}, but the {kind} is in {manifest.job.namespace} and cannot use it"
        for what, namespace in manifest.namespaces.items()
        if namespace != manifest.job.namespace
    ]
    for member in manifest.job_set.members:
        for job in member.jobs[:1]:  # all have the same template
            _check_references(job, manifest, problems)


def _check_references(job: KubernetesJob, manifest: Manifest, problems: list[str]) -> None:
    template = job.template
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
