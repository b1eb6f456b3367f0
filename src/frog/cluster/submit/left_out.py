"""What a bundle of a program must not contain: secrets and earlier bundles; and the list of what stays behind."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from frog.cluster.submit.bundle_folder import SUMS
from frog.core.errors import UsageError
from frog.core.units import some_of

_SECRET_FOLDERS = (".aws", ".azure", ".docker", ".gnupg", ".kube", ".ssh", "gcloud")
_SECRET_NAMES = (
    ".dockercfg", ".env", ".env.*", "*.env", ".git-credentials", ".htpasswd", ".netrc", "_netrc", ".npmrc", ".pgpass",
    ".pypirc", ".vault-token", "*.jks", "*.key", "*.keystore", "*.kubeconfig", "*.p12", "*.pfx", "*.ppk",
    "*service[-_]account*.json", "client_secret*.json", "credentials", "credentials.json", "id_dsa", "id_ecdsa",
    "id_ed25519", "id_rsa", "kaggle.json", "kubeconfig", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
)  # fmt: skip
_NO_SECRETS = ("*.dist", "*.example", "*.pub", "*.sample", "*.template")
_PRIVATE_KEY = b"PRIVATE KEY-----"
_KEY_BYTES = 4096
_MOST_SHOWN = 12


def refuse_secrets(folder: Path, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise UsageError with the files that look like secrets, except the allowed ones."""
    secrets = [name for name in names if name not in allowed and _is_secret(folder, name)]
    if secrets:
        excluded = " ".join(f"--exclude {name}" for name in secrets[:_MOST_SHOWN])
        raise UsageError(
            f"these files look like passwords or keys: {some_of(secrets, _MOST_SHOWN)}",
            f"leave them out ({excluded}), or take one along on purpose: --secret {secrets[0]}",
        )


def _is_secret(folder: Path, name: str) -> bool:
    *folders, last = name.lower().split("/")
    if any(fnmatch.fnmatch(last, pattern) for pattern in _NO_SECRETS):
        return False
    if any(part in _SECRET_FOLDERS for part in folders):
        return True
    if any(fnmatch.fnmatch(last, pattern) for pattern in _SECRET_NAMES):
        return True
    with open(folder / name, "rb") as file:
        return _PRIVATE_KEY in file.read(_KEY_BYTES)


def without_bundles(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the names that are not in a bundle that an earlier `frog bundle` made below the folder."""
    sums = {name.rpartition("/")[0] for name in names if name.endswith(f"/{SUMS}")}
    bundles = [place for place in sums if (folder / place / "job.sbatch").is_file()]
    return [name for name in names if not any(name.startswith(f"{place}/") for place in bundles)]


def left_out(folder: Path, taken: Collection[str], target: Path) -> list[str]:
    """Return the files and folders that a bundle does not take; a folder of which it takes nothing counts once."""
    own, places = Path(os.path.abspath(target)), {""}
    for name in taken:
        parts = name.split("/")
        places |= {"/".join(parts[:length]) for length in range(1, len(parts))}
    left: list[str] = []
    for place, folders, files in os.walk(folder):
        inside = os.path.relpath(place, folder)
        prefix = "" if inside == "." else f"{inside}/"
        for name in sorted(folders):
            if f"{prefix}{name}" not in places and Path(os.path.abspath(os.path.join(place, name))) != own:
                left.append(f"{prefix}{name}/")
        folders[:] = sorted(name for name in folders if f"{prefix}{name}" in places)
        left += [f"{prefix}{name}" for name in sorted(files) if f"{prefix}{name}" not in taken]
    return [name for name in left if name not in (".git/", "__pycache__/") and not name.endswith("/__pycache__/")]


def left_out_line(left: Sequence[str]) -> str:
    """Return the line of a bundle's summary that names what it left out, or an empty text."""
    return f"left out: {some_of(left, _MOST_SHOWN)}\n" if left else ""
