"""A checkpoint's manifest: what it must hold, and whether the files next to it are what it says. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from frog.core.errors import CheckpointError
from frog.core.facts import Damage, ErrorFacts
from frog.core.files import sha256_file

FORMAT = 2
"""Of the manifest and the files it names."""

_KEYS = ("step", "world_size", "state", "tensors", "files", "sha256")


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a manifest without its own hash."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest. Raises CheckpointError if there is none, or none that can be trusted."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no manifest.json, so it was never whole") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or any(key not in manifest for key in _KEYS):
        raise CheckpointError(f"{path}: not a manifest of format {FORMAT}")
    if manifest["sha256"] != manifest_hash(manifest):
        raise _damaged("corrupt", f"{path}: its content is not what was hashed when it was written")
    return manifest


def verify_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Compare every file with the manifest. Raises CheckpointError naming the first that differs, and how."""
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _damaged("torn", f"{path}: missing", name)
        if path.stat().st_size != entry["bytes"]:
            raise _damaged("torn", f"{path}: {path.stat().st_size} bytes, the manifest has {entry['bytes']}", name)
        if (digest := sha256_file(path)) != entry["sha256"]:
            what = f"{path}: its SHA-256 is {digest[:12]}…, the manifest has {entry['sha256'][:12]}…"
            raise _damaged("corrupt", what, name)


def damage_of(error: CheckpointError | OSError, step: int) -> Damage:
    """Why the checkpoint of a step cannot be trusted, from what reading it raised."""
    if isinstance(error, CheckpointError):
        known = error.facts.damage or (Damage(cause="torn", what=error.what),)
        return replace(known[0], step=step)
    return Damage(cause="torn", what=str(error), step=step)


def _damaged(cause: Literal["corrupt", "torn"], what: str, name: str = "") -> CheckpointError:
    """The error of a checkpoint whose file `name`, which its rank wrote, is not as it was."""
    match = re.fullmatch(r"rank_(\d+)\.safetensors", name)
    damage = Damage(cause=cause, what=what, rank=int(match[1]) if match else None)
    return CheckpointError(what, facts=ErrorFacts(cause=cause, damage=(damage,)))
