"""cluster.json of both kinds of cluster, with wrong values for every key, and the emulator daemon's answers."""

from __future__ import annotations

import io
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from mutations import held_to_its_schema

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator import emulated_cluster as emulator
from frog.cluster.emulator.wire import Conversation, read_client
from frog.cluster.simulated_cluster import EmulatorFile, Shape, ShapeFields, SlurmFile
from frog.cluster.slurm import real_cluster as cluster
from frog.cluster.slurm import slurm_programs
from frog.cluster.slurm.configuration import Site
from frog.core.errors import UsageError
from frog.core.schema import write_typed

SITE = Site("frog-0123abcd", Path("/x"), Path("/tmp/frog-slurm-a"), "h", "127.0.0.1", "me", (30_001, 30_002), 100_000)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    site, shape = replace(SITE, folder=tmp_path), ShapeFields(nodes=1, gpus_per_node=0, cpus_per_node=8)
    write_typed(tmp_path / "cluster.json", SlurmFile(kind="slurm", site=site.fields(), shape=shape))
    return tmp_path / "cluster.json"


@pytest.fixture
def emulated(tmp_path: Path) -> Path:
    own = EmulatorFile(kind="emulator", port=30_001, token="t", pid=4_194_304, cluster="frog0123abcd")
    write_typed(tmp_path / "cluster.json", own)
    return tmp_path / "cluster.json"


def test_real_cluster_file_with_wrong_types_is_refused(real: Path) -> None:
    found = cluster.read_cluster(real.parent)
    assert (found.site, found.shape) == (replace(SITE, folder=real.parent), Shape(1, 0, 8))
    held_to_its_schema(real, lambda: cluster.read_cluster(real.parent), names=str(real.parent))


@pytest.mark.parametrize("scratch", ["/", "/etc", "../frog-slurm-a", "/tmp/frog-slurm-a/../..", "/tmp/frog-slurm-"])
def test_folder_without_cluster_mark_is_not_removed(real: Path, scratch: str) -> None:
    table = json.loads(real.read_text())
    table["site"]["scratch"] = scratch
    real.write_text(json.dumps(table))
    with pytest.raises(UsageError, match=r"\$\.site\.scratch"):
        cluster.read_cluster(real.parent)


def test_down_clears_only_its_own_folder(real: Path, tmp_path: Path) -> None:
    table, other = json.loads(real.read_text()), tmp_path / "other"
    other.mkdir()
    (other / "slurm.conf").write_text("another program's")
    real.write_text(json.dumps({**table, "site": {**table["site"], "folder": str(other)}}))
    with pytest.raises(UsageError, match=r"\$\.site\.folder: found .*, which is another folder"):
        cluster.down(real.parent)
    assert (other / "slurm.conf").exists()


def test_scratch_folder_of_another_cluster_is_kept(real: Path, tmp_path: Path) -> None:
    table, scratch = json.loads(real.read_text()), tmp_path / "frog-slurm-b"
    scratch.mkdir()
    real.write_text(json.dumps({**table, "site": {**table["site"], "scratch": str(scratch)}}))
    site = cluster.read_cluster(real.parent).site
    cluster._clear(site, keep_logs=False)
    assert scratch.is_dir()
    (scratch / "folder").symlink_to(real.parent)
    cluster._clear(site, keep_logs=False)
    assert not scratch.exists()


def test_emulator_cluster_file_with_wrong_types_is_refused(emulated: Path) -> None:
    held_to_its_schema(emulated, lambda: read_client(emulated.parent))
    held_to_its_schema(emulated, lambda: emulator._read(emulated.parent), names=str(emulated.parent))
    held_to_its_schema(emulated, lambda: slurm_programs._is_emulators(emulated.parent / "bin"))


def test_invalid_answer_of_the_daemon_is_reported() -> None:
    def hear(answer: object) -> None:
        here, there = socket.socketpair()
        with here, there:
            Conversation(here, io.StringIO(json.dumps(answer) + "\n")).hear()

    with pytest.raises(SlurmRefusal, match="no such job"):
        hear({"error": "no such job"})
    for wrong in ({"code": "x"}, {"error": 3}, [], None, "x"):
        with pytest.raises(SlurmRefusal, match="the answer from the emulator's daemon: "):
            hear(wrong)


def test_down_ends_only_the_daemon_itself(emulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` must not kill another process that has the recorded pid while the daemon answers."""
    own = emulator._read(emulated.parent)
    assert own is not None
    monkeypatch.setattr(emulator, "_look", lambda folder: {"nodes": []})
    monkeypatch.setattr(emulator, "signal_one", lambda pid, number: pytest.fail("not a process of the emulator"))
    emulator._clear(emulated.parent, own)
    assert not emulated.exists()
