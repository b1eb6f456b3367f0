"""What a manifest contains to run a program that is not Frog's: its files, the observer, and its command."""

from __future__ import annotations

import base64
import io
import os
import re
import shlex
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from frog.cluster.submit.kubernetes_request import KubernetesRequest
from frog.cluster.submit.program_files import find_program_files, is_text
from frog.cluster.submit.program_work import ProgramWork
from frog.core.errors import ConfigError, UsageError
from frog.observe.environment import HOOK

PROGRAM_PATH = "/program"
OBSERVER_PATH = "/observer"
OBSERVER_ZIP = "observer.zip"
_OBSERVER = ("sitecustomize.py", "frog_observer")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of the archive's entries, so that equal files give an equal archive."""


@dataclass(frozen=True)
class PodFile:
    """A file of the program: its path in the working folder, its key in the ConfigMap, and its text."""

    path: str
    key: str
    text: str


def read_program(work: ProgramWork, include: Sequence[str], folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the program's files by path, and the files that its command names and the volume must have.

    Raises:  UsageError if a file is missing, lies outside of the folder or is not text.
    """
    script = work.file
    if script is not None and Path(script).is_absolute():
        if (inner := Path(os.path.relpath(script, folder))).is_file() and ".." not in inner.parts:
            raise UsageError(f"{script}: an absolute path means a file of the image", f"-- {inner}: a file to send")
        script = None
    found = find_program_files(work.words_after_python, script, include, folder)
    for name in found.sent:
        if not name.isprintable():
            raise UsageError(f"{name!r}: a file's name must be one line of printable characters", "rename the file")
        if not is_text(folder / name):
            raise UsageError(f"{name}: not text in UTF-8, so a ConfigMap cannot contain it", "put it on the volume")
    return {name: (folder / name).read_text(encoding="utf-8") for name in found.sent}, found.data


def program_values(request: KubernetesRequest) -> dict[str, Any]:
    """Return what the template needs to start the program. Kubernetes reads $$ as one $."""
    assert request.program is not None
    files = _with_keys(request.files)
    folders = sorted({str(PurePosixPath(file.path).parent) for file in files} - {"."})
    return {
        "files": files,
        "copied": _as_shell(file.path for file in files),
        "folders": _as_shell(folders),
        "words": [word.replace("$", "$$") for word in request.program.torchrun_words],
        "observer": base64.b64encode(_observer_archive()).decode() if request.program.observer else None,
        "executable": any(word == "--no-python" for word in request.program.torchrun_words[:1]),
        "data": request.data,
    }


def check_size(request: KubernetesRequest, most_bytes: int) -> None:
    """Raise ConfigError if the program's files do not fit into a ConfigMap next to the observer."""
    size = sum(len(name) + len(text.encode()) for name, text in request.files.items())
    size += len(_observer_archive()) if request.program and request.program.observer else 0
    if size > most_bytes:
        sizes = sorted(((len(text.encode()), name) for name, text in request.files.items()), reverse=True)
        biggest = ", ".join(f"{name} ({number:,} bytes)" for number, name in sizes[:3])
        raise ConfigError(
            f"the program's files have {size:,} bytes, but a ConfigMap holds at most {most_bytes:,}: {biggest}",
            "put large files on the volume, or the program into the image: -- python /app/my.py",
        )


def _with_keys(files: Mapping[str, str]) -> list[PodFile]:
    """Return the files with unique keys, which may not contain slashes."""
    found: list[PodFile] = []
    taken = {OBSERVER_ZIP}
    for path, text in files.items():
        plain = key = re.sub(r"[^-._a-zA-Z0-9]+", "_", path.replace("/", ".")).lstrip(".")[:200] or "file"
        number = 1
        while key in taken:
            number += 1
            key = f"{plain}-{number}"
        taken.add(key)
        found.append(PodFile(path, key, text))
    return found


def _as_shell(words: Iterable[str]) -> str:
    return shlex.join(words).replace("$", "$$")


def _observer_archive() -> bytes:
    """Return the observer's code as a zip archive, from which Python can import."""
    files = [path for name in _OBSERVER for path in (HOOK / name, *sorted((HOOK / name).glob("*.py")))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            if path.is_file():
                info = zipfile.ZipInfo(path.relative_to(HOOK).as_posix(), _EPOCH)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, path.read_bytes())
    return buffer.getvalue()
