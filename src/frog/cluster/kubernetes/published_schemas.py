"""What Kubernetes refuses in a manifest: by its published schemas, and by the rules of its API server beyond them.

The schemas are those of the packages kubernetes-validate (Kubernetes' OpenAPI definitions) and kubeflow-trainer-api
(TrainJob, JobSet), which the extra `kubernetes` installs. Of kinds that neither has, the pod templates are checked, and
of PyTorchJob, MPIJob and Kueue's objects the rules that their operators' admission applies.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frog.core.user_input import nearest

_POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_PACKAGES = ("jsonschema", "kubernetes_validate")
_MOST_PROBLEMS = 100
_KUBEFLOW = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "TrainerV1alpha1TrainingRuntime",
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): "TrainerV1alpha1ClusterTrainingRuntime",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobsetV1alpha2JobSet",
}
"""The kinds of kubeflow-trainer-api, and its models."""


def have_schemas() -> bool:
    """True if the packages with Kubernetes' schemas are installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def has_schema(document: Mapping[Any, Any]) -> bool:
    """True if a package has the schema of an object's kind."""
    version, kind = document.get("apiVersion"), document.get("kind")
    return isinstance(version, str) and isinstance(kind, str) and _schema_of(version, kind) is not None


def refused_by_kubernetes(document: Mapping[str, Any]) -> list[str]:
    """Return what Kubernetes refuses in one object; without the packages, only by the rules beyond the schemas.

    Placeholders that are still to be filled in are left out: their values cannot be known (`placeholders`).
    """
    return [problem for problem in _all_problems(document) if not problem.endswith(_UNKNOWN)][:_MOST_PROBLEMS]


def placeholders(document: Mapping[str, Any]) -> list[str]:
    """Return the placeholders of a template at which Kubernetes needs another value."""
    return [problem for problem in _all_problems(document) if problem.endswith(_UNKNOWN)][:_MOST_PROBLEMS]


def _all_problems(document: Mapping[str, Any]) -> list[str]:
    kind = str(document.get("kind"))
    problems = [*_schema_problems(document)] if have_schemas() else []
    return [f"{kind}{place}" for place in dict.fromkeys((*problems, *_rule_problems(document)))]


_UNKNOWN = "a placeholder, whose value cannot be known"
_PLACEHOLDER = re.compile(r"\$\{?[A-Za-z_]\w*\}?|\{\{.*\}\}|<[\w .-]+>|%\w+%|__\w+__", re.ASCII)


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None


# ---- schemas ---------------------------------------------------------------------------------------------------------


def _schema_problems(document: Mapping[str, Any]) -> Iterator[str]:
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        yield from (f".{key}: missing" for key in ("apiVersion", "kind") if not isinstance(document.get(key), str))
        return
    schema = _schema_of(version, kind)
    if schema is not None:
        yield from _violations(document, schema, "")
        return
    for place, template in _pod_templates(document, ""):
        yield from _violations(template, {"$ref": f"#/$defs/{_POD_TEMPLATE}", "$defs": _definitions()}, place)


@functools.cache
def _definitions() -> dict[str, Any]:
    """Return the definitions of the newest Kubernetes that the package has."""
    import kubernetes_validate

    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    version = kubernetes_validate.latest_version()
    text = (folder / f"v{version}-local-strict" / "_definitions.json").read_text()
    definitions: dict[str, Any] = json.loads(text)["$defs"]
    return definitions


@functools.cache
def _schema_of(version: str, kind: str) -> dict[str, Any] | None:
    """Return the schema of a kind; None if no package has one."""
    if (version, kind) in _KUBEFLOW:
        return _kubeflow_schema(_KUBEFLOW[version, kind])
    for name, definition in _definitions().items():
        for known in definition.get("x-kubernetes-group-version-kind", ()):
            group = f"{known['group']}/" if known["group"] else ""
            if known["kind"] == kind and f"{group}{known['version']}" == version:
                return {"$ref": f"#/$defs/{name}", "$defs": _definitions()}
    return None


def _kubeflow_schema(model: str) -> dict[str, Any] | None:
    try:
        from kubeflow_trainer_api import models
    except ImportError:
        return None
    schema: dict[str, Any] = getattr(models, model).model_json_schema(by_alias=True)
    _refuse_unknown_keys(schema)
    for name, definition in schema["$defs"].items():
        if "one_of_schemas" in definition.get("properties", {}):  # pydantic's form of "a string or a number"
            schema["$defs"][name] = {"type": ["string", "number"]}
        if name == "JobsetV1alpha2FailurePolicyRule":  # JobSet's controller fills in the name of a rule
            definition["required"] = [key for key in definition.get("required", ()) if key != "name"]
    return schema


def _refuse_unknown_keys(schema: Any) -> None:
    if isinstance(schema, list):
        for inner in schema:
            _refuse_unknown_keys(inner)
    elif isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for inner in schema.values():
            _refuse_unknown_keys(inner)


def _violations(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(value):
        inner = jsonschema.exceptions.best_match([error])
        where = place + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in inner.absolute_path)
        if inner.instance is None:  # Kubernetes takes null for the absence of a value
            continue
        if _is_placeholder(inner.instance):
            yield f"{where}: {inner.instance}: {_UNKNOWN}"
        elif inner.validator == "additionalProperties":
            known = inner.schema.get("properties", {})
            for key in inner.instance.keys() - known.keys():
                near = nearest(str(key), known)
                yield f"{where}.{key}: no such field" + (f"; did you mean {near}?" if near else "")
        elif inner.validator == "required":
            missing = [key for key in inner.validator_value if key not in inner.instance]
            yield from (f"{where}.{key}: missing" for key in missing)
        else:
            yield f"{where}: {_short(inner.message)}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


# ---- rules beyond the schemas ----------------------------------------------------------------------------------------

_EXTENDED = re.compile(r"(?!.*kubernetes\.io/)[a-z0-9.-]+/[\w.-]+")
"""A resource of a device plugin, such as nvidia.com/gpu."""
_WHOLE = re.compile(r"\d+")


def _rule_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield violations of rules that the API server applies to pods, and to Jobs.

    Source:  Kubernetes' documentation, "Schedule GPUs" and "Jobs": an extended resource needs a limit, which its
             request equals; a Job's pods restart Never or OnFailure; an Indexed Job needs its number of completions.
    """
    if document.get("kind") == "Pod":
        yield from _container_problems(document.get("spec"), ".spec")
    for place, template in _pod_templates(document, ""):
        yield from _container_problems(template.get("spec"), f"{place}.spec")
    version, kind = str(document.get("apiVersion")), str(document.get("kind"))
    spec = _mapping(document.get("spec"))
    if (version, kind) == ("batch/v1", "Job"):
        yield from _job_problems(spec)
    elif (version, kind) == ("kubeflow.org/v1", "PyTorchJob"):
        yield from _replica_problems(spec, "pytorchReplicaSpecs", ("Master", "Worker"), "Master", "pytorch")
    elif version.startswith("kubeflow.org/") and kind == "MPIJob":
        yield from _replica_problems(spec, "mpiReplicaSpecs", ("Launcher", "Worker"), "Launcher", None)
        slots = spec.get("slotsPerWorker", 1)
        if not _is_placeholder(slots) and (type(slots) is not int or slots < 1):
            yield f".spec.slotsPerWorker: {slots!r}: must be a whole number of at least 1"
    elif version.startswith("kueue.x-k8s.io/"):
        yield from _kueue_problems(kind, spec)
    yield from _queue_problems(document)


def _job_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    pod = _mapping(_mapping(spec.get("template")).get("spec"))
    restart = pod.get("restartPolicy", "missing, which means Always")
    if pod and restart not in ("Never", "OnFailure"):
        yield f".spec.template.spec.restartPolicy: {restart}: must be Never or OnFailure for a Job"
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield ".spec.completions: missing: completionMode Indexed needs it"


_RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_QUEUE = "kueue.x-k8s.io/queue-name"


def _replica_problems(
    spec: Mapping[str, Any], key: str, roles: tuple[str, ...], single: str, container: str | None
) -> Iterator[str]:
    """Yield what the admission of Kubeflow's training operator or MPI operator refuses.

    single: the role that has one replica. container: the name that a container of each role must have.
    Source:  the operators' `validation` packages.
    """
    policy = _mapping(spec.get("runPolicy"))
    if "suspend" in policy and type(policy["suspend"]) is not bool and not _is_placeholder(policy["suspend"]):
        yield f".spec.runPolicy.suspend: {policy['suspend']!r}: must be true or false"
    replicas = spec.get(key)
    if not isinstance(replicas, dict) or not replicas:
        yield f".spec.{key}: missing"
        return
    if single == "Launcher" and single not in replicas:
        yield f".spec.{key}.Launcher: missing"
    for role, value in replicas.items():
        place = f".spec.{key}.{role}"
        if role not in roles:
            near = nearest(str(role), roles)
            yield f"{place}: no such role; roles: {', '.join(roles)}" + (f"; did you mean {near}?" if near else "")
            continue
        number = _mapping(value).get("replicas")
        if _is_placeholder(number):
            yield f"{place}.replicas: {number}: {_UNKNOWN}"
        elif number is not None and (type(number) is not int or number < 0):
            yield f"{place}.replicas: {number!r}: must be a whole number"
        elif role == single and number not in (None, 1):
            yield f"{place}.replicas: {number}: there must be exactly one {single}"
        restart = _mapping(value).get("restartPolicy")
        if restart is not None and restart not in _RESTARTS and not _is_placeholder(restart):
            yield f"{place}.restartPolicy: {restart!r}: must be one of {', '.join(_RESTARTS)}"
        containers = _mapping(_mapping(_mapping(value).get("template")).get("spec")).get("containers")
        if not isinstance(containers, list) or not containers:
            yield f"{place}.template.spec.containers: missing"
        elif container is not None and container not in [_mapping(each).get("name") for each in containers]:
            yield f"{place}.template.spec.containers: none is named {container}, as the operator needs it"


def _kueue_problems(kind: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what Kueue refuses in its own objects."""
    if kind == "LocalQueue" and not isinstance(spec.get("clusterQueue"), str):
        yield ".spec.clusterQueue: missing: the name of a ClusterQueue"
    groups = spec.get("resourceGroups") if kind == "ClusterQueue" else None
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        place = f".spec.resourceGroups[{number}]"
        covered, flavors = _mapping(group).get("coveredResources"), _mapping(group).get("flavors")
        if not isinstance(covered, list) or not isinstance(flavors, list):
            yield f"{place}: needs coveredResources and flavors"
            continue
        for at, flavor in enumerate(flavors):
            resources = _mapping(flavor).get("resources")
            names = [_mapping(each).get("name") for each in resources] if isinstance(resources, list) else []
            if names != covered:
                yield f"{place}.flavors[{at}].resources: {names}: must be coveredResources, in this order: {covered}"


def _queue_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a label of Kueue that Kubernetes refuses, or that is in the wrong place."""
    labels = _mapping(_mapping(document.get("metadata")).get("labels"))
    queue = labels.get(_QUEUE)
    is_label = isinstance(queue, str) and _LABEL_VALUE.fullmatch(queue) is not None
    if queue is not None and not is_label and not _is_placeholder(queue):
        yield f".metadata.labels.{_QUEUE}: {queue!r}: not a valid label"


def _container_problems(pod: Any, place: str) -> Iterator[str]:
    if not isinstance(pod, dict):
        return
    for kind in ("containers", "initContainers"):
        containers = pod.get(kind)
        for number, container in enumerate(containers if isinstance(containers, list) else ()):
            resources = container.get("resources") if isinstance(container, dict) else None
            if isinstance(resources, dict):
                yield from resource_problems(resources, f"{place}.{kind}[{number}].resources")


def resource_problems(resources: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield what Kubernetes refuses in a container's requests and limits."""
    requests, limits = _mapping(resources.get("requests")), _mapping(resources.get("limits"))
    for name in sorted({*map(str, requests), *map(str, limits)}):
        if not _EXTENDED.fullmatch(name):
            continue
        request, limit = requests.get(name), limits.get(name)
        if name in requests and name not in limits:
            yield f"{place}.requests.{name}: {request} without a limit: Kubernetes refuses it; write the limit"
        elif request is not None and str(request) != str(limit):
            yield f"{place}.requests.{name}: {request}, but the limit is {limit}: they must be equal"
        if _is_placeholder(limit):
            yield f"{place}.limits.{name}: {limit}: {_UNKNOWN}"
        elif limit is not None and not _WHOLE.fullmatch(str(limit)):
            yield f"{place}.limits.{name}: {limit}: must be a whole number"


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _pod_templates(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the pod templates in an object, with their places: objects whose spec has containers."""
    if depth > 30:
        return
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _pod_templates(inner, f"{place}[{number}]", depth + 1)
    elif isinstance(value, dict):
        spec = value.get("spec")
        if depth and isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield place, value
        for key, inner in value.items():
            yield from _pod_templates(inner, f"{place}.{key}", depth + 1)
