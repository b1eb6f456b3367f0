"""What Kubernetes refuses in a manifest: by its published schemas, and by the rules of its API server beyond them.

The schemas are those of the packages kubernetes-validate (Kubernetes' OpenAPI definitions) and kubeflow-trainer-api
(TrainJob, JobSet), which the extra `kubernetes` installs. Of kinds that neither has, such as PyTorchJob and MPIJob, the
pod templates are checked.
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


def refused_by_kubernetes(document: Mapping[str, Any]) -> list[str]:
    """Return what Kubernetes refuses in one object; without the packages, only by the rules beyond the schemas."""
    kind = str(document.get("kind"))
    problems = [*_schema_problems(document)] if have_schemas() else []
    return [f"{kind}{place}" for place in dict.fromkeys((*problems, *_rule_problems(document)))][:_MOST_PROBLEMS]


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
        if inner.validator == "additionalProperties":
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
    if (document.get("apiVersion"), document.get("kind")) == ("batch/v1", "Job"):
        yield from _job_problems(_mapping(document.get("spec")))


def _job_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    pod = _mapping(_mapping(spec.get("template")).get("spec"))
    restart = pod.get("restartPolicy", "missing, which means Always")
    if pod and restart not in ("Never", "OnFailure"):
        yield f".spec.template.spec.restartPolicy: {restart}: must be Never or OnFailure for a Job"
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield ".spec.completions: missing: completionMode Indexed needs it"


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
        if limit is not None and not _WHOLE.fullmatch(str(limit)):
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
