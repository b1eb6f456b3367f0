"""The official schemas, for checking manifests: see schemas/README.md."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMAS = Path(__file__).parent / "schemas"
ROOT = Path(__file__).parents[3]


@functools.cache
def validators() -> dict[str, jsonschema.Draft202012Validator]:
    """Return one validator per kind, by apiVersion and kind."""
    found = {}
    for name in ("kubernetes.json", "trainjob.json"):
        schema = json.loads((SCHEMAS / name).read_text())
        for kind, root in schema["roots"].items():
            one = {"$ref": f"#/$defs/{root}", "$defs": schema["$defs"]}
            found[kind] = jsonschema.Draft202012Validator(one)
    return found


def schema_problems(document: dict[str, Any]) -> list[str]:
    """Return an object's violations of the schema of its kind."""
    validator = validators()[f"{document['apiVersion']} {document['kind']}"]
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(document)]


def documents(text: str) -> dict[str, Any]:
    """Return the objects of a manifest, by kind."""
    found = [document for document in yaml.safe_load_all(text) if document is not None]
    by_kind = {document["kind"]: document for document in found}
    assert len(by_kind) == len(found)
    return by_kind
