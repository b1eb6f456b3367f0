"""Checkpoints on disk."""

import os
import uuid
from pathlib import Path



def save_checkpoint(folder: Path, step: int, parts: dict[str, bytes]) -> None:
    """Each save has its own folder; a link to it is replaced atomically."""
    data = folder / f"data_{uuid.uuid4().hex}"
    data.mkdir()
    for name, content in parts.items():
        (data / name).write_bytes(content)
    link = folder / f"link_{uuid.uuid4().hex}"
    link.symlink_to(data.name)
    os.replace(link, folder / f"step_{step}")


def load_latest(folder: Path) -> tuple[int, dict[str, bytes]] | None:
    links = sorted(folder.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    if not links:
        return None
    return int(links[-1].name.removeprefix("step_")), {path.name: path.read_bytes() for path in links[-1].iterdir()}
