"""What a machine has for a process: memory, cores and ports, also in a container with less."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from frog.core import machine
from frog.core.errors import ConfigError, UsageError
from frog.core.files import socket_name, write_atomic

GIB = 1 << 30


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder with a container's limits, on a machine of 8 GiB and 4 cores."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8 * GIB, available=5 * GIB))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3} if pid == 0 else set(), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "total", "free", "cores"),
    [
        ({}, 8, 5, 4.0),
        ({"memory.max": "max", "memory.current": "1", "cpu.max": "max 100000"}, 8, 5, 4.0),
        ({"memory.max": str(2 * GIB), "memory.current": str(GIB // 2), "cpu.max": "150000 100000"}, 2, 1.5, 1.5),
        ({"memory.max": str(16 * GIB), "memory.current": "0", "cpu.max": "900000 100000"}, 8, 5, 4.0),
    ],
)
def test_container_has_no_more_than_its_limits(
    container: Path, files: dict[str, str], total: float, free: float, cores: float
) -> None:
    for name, text in files.items():
        (container / name).write_text(text + "\n")
    assert (machine.machine_bytes() / GIB, machine.free_bytes() / GIB) == (total, free)
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(("ranks", "threads"), [(1, 4), (2, 2), (3, 1), (4, 1), (9, 1)])
def test_ranks_share_the_cores_and_have_at_least_one_thread(container: Path, ranks: int, threads: int) -> None:
    assert machine.threads_per_rank(ranks) == threads


def test_more_memory_than_the_machine_has_is_refused(container: Path) -> None:
    machine.check_memory(8 * GIB, "it", "less")
    with pytest.raises(ConfigError) as caught:
        machine.check_memory(8 * GIB + 1, "it", "less")
    expected = "it takes at least 8.0 GiB of memory, but this machine has 8.0 GiB\n  try: less"
    assert str(caught.value) == expected


def test_free_port_is_none_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        found = machine.free_port(among=range(port, port + 50))
    assert port < found < port + 50
    assert 10_000 <= machine.free_port() < 30_000


@pytest.mark.parametrize(("length", "is_short"), [(99, True), (100, True), (101, False), (200, False)])
def test_long_name_of_a_socket_is_reached_through_its_folder(tmp_path: Path, length: int, is_short: bool) -> None:
    folder = tmp_path / ("x" * (length - len(str(tmp_path)) - 4))
    folder.mkdir()
    path = folder / "s1"
    assert len(str(path)) == length
    with socket_name(path) as name:
        assert (name == str(path)) == is_short
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(name)
    assert path.is_socket()


def test_long_name_of_a_socket_is_refused_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(UsageError, match="too long for the name of a socket"), socket_name(tmp_path / ("x" * 99)):
        pass


def test_private_file_is_read_by_its_owner_only(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_atomic(tmp_path / "private", "x", private=True)
        write_atomic(tmp_path / "public", "x")
    finally:
        os.umask(mask)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("private", "public")] == ["0o600", "0o644"]


def test_glibc_is_told_to_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, at the largest values that glibc accepts."""
    told: list[tuple[int, int]] = []
    libc = SimpleNamespace(mallopt=lambda option, value: told.append((option, value)))
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: libc)
    machine.keep_freed_memory()
    assert told == [(-1, 2**31 - 1), (-3, 32 << 20)]
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: SimpleNamespace())
    machine.keep_freed_memory()  # another C library


def test_whole_huge_pages_of_own_writable_memory_are_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = 2 << 20
    (tmp_path / "maps").write_text(
        "".join(
            f"{start:x}-{end:x} {rights} 0 00:00 {inode}{name}\n"
            for start, end, rights, inode, name in (
                (page, 3 * page, "rw-p", 0, ""),
                (5 * page + 1, 8 * page - 1, "rw-p", 0, " [heap]"),
                (10 * page, 12 * page, "r--p", 0, ""),
                (20 * page, 22 * page, "rw-p", 7, " /lib/x.so"),
                (30 * page, 32 * page, "rw-p", 0, " [stack]"),
                (40 * page + 1, 42 * page - 1, "rw-p", 0, ""),
            )
        )
    )
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda name, *more: real(tmp_path / "maps" if name == "/proc/self/maps" else name, *more)
    )
    asked: list[Any] = []
    monkeypatch.setattr(machine, "call_libc", lambda name, *arguments: asked.append((name, *arguments)))
    machine.use_huge_pages()
    monkeypatch.undo()
    assert [(name, start.value // page, length.value // page, advice) for name, start, length, advice in asked] == [
        ("madvise", 1, 2, 25),
        ("madvise", 6, 1, 25),
    ]
