"""Write the schemas next to this file: `python tests/cluster/kubernetes/schemas/vendor.py`. It needs both packages.

kubernetes-validate contains Kubernetes' OpenAPI definitions as JSON schemas that refuse unknown keys. This program
copies the definitions that our manifests use and changes only their references, which then point into the same file.
Kubeflow publishes the OpenAPI models of its Trainer as pydantic models; this program writes their JSON schema, which
also refuses unknown keys.
"""

import json
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
KUBERNETES = "1.37"
ROOTS = {
    "batch/v1 Job": "io.k8s.api.batch.v1.Job",
    "v1 Service": "io.k8s.api.core.v1.Service",
    "v1 ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1 PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
}


def names_in(value):
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        value = value.values()
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        for inner in value:
            yield from names_in(inner)


def reachable(definitions, roots):
    """Return `roots` and every definition that they refer to, directly or not."""
    found, left = {}, list(roots)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = definitions[name]
            left += names_in(definitions[name])
    return dict(sorted(found.items()))


def refuse_unknown_keys(schema):
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for inner in schema.values():
            refuse_unknown_keys(inner)


def write(name, comment, roots, definitions):
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": comment,
        "roots": roots,
        "$defs": definitions,
    }
    (HERE / name).write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")


def kubernetes():
    import kubernetes_validate

    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    comment = f"Kubernetes {KUBERNETES}, Apache-2.0, from kubernetes-validate {version('kubernetes-validate')}"
    write("kubernetes.json", comment, ROOTS, reachable(definitions, ROOTS.values()))


def trainjob():
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    schema = TrainerV1alpha1TrainJob.model_json_schema(by_alias=True)
    refuse_unknown_keys(schema)
    definitions = schema.pop("$defs")
    for name, definition in definitions.items():
        if "one_of_schemas" in definition.get("properties", {}):  # pydantic's form of "a string or a number"
            definitions[name] = {"type": ["string", "number"]}
    definitions["TrainJob"] = schema
    comment = f"Kubeflow Trainer, Apache-2.0, from kubeflow_trainer_api {version('kubeflow_trainer_api')}"
    write("trainjob.json", comment, {"trainer.kubeflow.org/v1alpha1 TrainJob": "TrainJob"}, definitions)


if __name__ == "__main__":
    kubernetes()
    trainjob()
