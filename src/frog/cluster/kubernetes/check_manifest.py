"""`frog run --from FILE --dry-run`: the mistakes of a manifest of any kinds, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frog.cluster.kubernetes.manifest_text import ManifestError, load_documents
from frog.cluster.kubernetes.published_schemas import (
    has_schema,
    have_schemas,
    placeholders,
    refused_by_kubernetes,
)
from frog.core.schema import read_bounded, shortened

_MOST_BYTES, _MOST_SHOWN = 4 << 20, 50


def check_manifest(path: Path) -> int:
    """Print what Kubernetes refuses in a file, and how each object was checked; return 1 if it refuses anything.

    Raises:  ManifestError if the file cannot be read.
    """
    try:
        documents = load_documents(read_bounded(path, ManifestError, most_bytes=_MOST_BYTES).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: cannot be read: {error}") from None
    except ValueError as error:
        raise ManifestError(f"{path}: not valid YAML: {error}", "correct that line") from None
    if not documents:
        raise ManifestError(f"{path}: contains no object", "name a manifest")
    problems: list[str] = []
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            problems.append(f"document {number}: must be an object")
            continue
        print(f"{_name(document, number)}: {_how(document)}")
        for unknown in placeholders(document)[:_MOST_SHOWN]:
            print(f"  {shortened(unknown, 500)}")
        problems += refused_by_kubernetes(document)
    for problem in problems[:_MOST_SHOWN]:
        print(f"  - {shortened(problem, 500)}")
    more = f", {_MOST_SHOWN} shown" if len(problems) > _MOST_SHOWN else ""
    count = "no mistakes found"
    if problems:
        count = f"{len(problems)} mistake{'' if len(problems) == 1 else 's'}"
    print(f"{path}: {count}{more}")
    return 1 if problems else 0


def _name(document: dict[Any, Any], number: int) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return shortened(f"{document.get('kind', f'document {number}')} {name or ''}".strip(), 200)


def _how(document: dict[Any, Any]) -> str:
    if not have_schemas():
        return 'checked by rules only; for the published schemas: pip install "frog[kubernetes]"'
    if has_schema(document):
        return "checked with its published schema"
    return "no published schema here: its pod templates and the operator's own rules were checked"
