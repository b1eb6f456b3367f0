"""What Frog asks the kernel for, call by call, with the numbers of Linux's headers; nothing is asked here."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from frog.core import landlock, namespaces

NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record the calls of the C library."""
    made: list[tuple[Any, ...]] = []

    def call(name: str, *arguments: Any, what: str | None = None) -> None:
        made.append((name, *(each.value if isinstance(each, ctypes.c_ulong) else each for each in arguments)))

    monkeypatch.setattr(namespaces, "call_libc", call)
    return made


def test_kinds_of_namespaces_have_their_flags() -> None:
    assert [namespaces.FILES, namespaces.HOST_NAME, namespaces.SHARED_MEMORY] == [1 << 17, 1 << 26, 1 << 27]
    assert [namespaces.USERS, namespaces.PROCESSES, namespaces.NETWORK] == [1 << 28, 1 << 29, 1 << 30]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: namespaces.unshare(namespaces.FILES | namespaces.USERS), [("unshare", (1 << 17) + (1 << 28))]),
        (lambda: namespaces.mount_proc("/p"), [("mount", b"proc", b"/p", b"proc", NOSUID + NODEV + NOEXEC, None)]),
        (
            lambda: namespaces.mount_memory("/m", 4096, "0"),
            [("mount", b"tmpfs", b"/m", b"tmpfs", NOSUID + NODEV, b"mode=0,size=4096")],
        ),
        (
            lambda: namespaces.mount_memory("/m", None),
            [("mount", b"tmpfs", b"/m", b"tmpfs", NOSUID + NODEV, b"mode=1777")],
        ),
        (
            lambda: namespaces.mount_overlay("/t", "/l", "/u", "/w"),
            [
                (
                    "mount",
                    b"overlay",
                    b"/t",
                    b"overlay",
                    NOSUID + NODEV,
                    b"lowerdir=/l,upperdir=/u,workdir=/w,userxattr",
                ),
            ],
        ),
        (lambda: namespaces.bind("/a", "/b"), [("mount", b"/a", b"/b", None, BIND + REC, None)]),
        (
            lambda: namespaces.bind("/a", "/b", read_only=True),
            [
                ("mount", b"/a", b"/b", None, BIND + REC, None),
                ("syscall", 442, -100, b"/b", 0x8000, struct.pack("QQQQ", 1, 0, 0, 0), 32),
            ],
        ),
        (
            namespaces.separate_mounts,
            [("unshare", 1 << 17), ("mount", b"none", b"/", None, REC + PRIVATE, None)],
        ),
        (namespaces.die_with_parent, [("prctl", 1, 9, 0, 0, 0)]),
        (namespaces.allow_no_new_privileges, [("prctl", 38, 1, 0, 0, 0)]),
        (
            namespaces.give_up_privileges,
            [*(("prctl", 24, number, 0, 0, 0) for number in range(64)), ("prctl", 38, 1, 0, 0, 0)],
        ),
    ],
)
def test_kernel_is_asked_for_this(calls: list[tuple[Any, ...]], call: Any, expected: list[tuple[Any, ...]]) -> None:
    call()
    assert calls == expected


def test_capabilities_end_where_the_kernel_knows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def call(name: str, option: int, number: int, *rest: int) -> None:
        made.append((option, number))
        if (option, number) == (24, 2):
            raise OSError

    monkeypatch.setattr(namespaces, "call_libc", call)
    namespaces.give_up_privileges()
    assert made == [(24, 0), (24, 1), (24, 2), (38, 1)]


def test_process_moves_through_a_user_namespace_if_it_is_not_privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(namespaces, "unshare", made.append)
    assert not namespaces.unshare_as_same_user(8)

    def refuse(kinds: int) -> None:
        made.append(kinds)
        if not kinds & namespaces.USERS:
            raise PermissionError

    monkeypatch.setattr(namespaces, "unshare", refuse)
    monkeypatch.setattr(Path, "write_text", lambda path, text: made.append((str(path), text)))
    assert namespaces.unshare_as_same_user(8)
    uid, gid = os.geteuid(), os.getegid()
    assert made == [
        *(8, 8, 8 | namespaces.USERS, ("/proc/self/setgroups", "deny")),
        *(("/proc/self/uid_map", f"{uid} {uid} 1"), ("/proc/self/gid_map", f"{gid} {gid} 1")),
    ]


def test_mount_points_are_sorted_and_unescaped(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{number} 1 0:1 / {place} rw - x y" for number, place in enumerate((r"/b\040c", "/a", r"/d\134e"))]
    monkeypatch.setattr(Path, "read_text", lambda path: "\n".join(lines))
    assert namespaces.mount_points() == ["/a", "/b c", "/d\\e"]


def test_failing_call_says_what_it_was() -> None:
    with pytest.raises(OSError, match="mount x: "):
        namespaces.call_libc("umount2", b"/no/such/place", 0, what="mount x")
    with pytest.raises(OSError, match="no_such_call: Function not implemented"):
        namespaces.call_libc("no_such_call")


CHANGES = 2 + sum(1 << bit for bit in range(4, 13))


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (1, [CHANGES]),
        (2, [CHANGES + (1 << 13)]),
        (3, [CHANGES + (1 << 13) + (1 << 14)]),
        (4, [CHANGES + (1 << 13) + (1 << 14), 0]),
        (5, [CHANGES + (1 << 13) + (1 << 14), 0]),
        (6, [CHANGES + (1 << 13) + (1 << 14), 0, 2]),
    ],
)
def test_rights_are_those_that_the_version_of_landlock_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int, fields: list[int]
) -> None:
    (tmp_path / "file").touch()
    made: list[tuple[Any, ...]] = []
    rules = os.open(os.devnull, os.O_RDONLY)

    def call(number: int, *arguments: Any) -> int:
        made.append((number, *arguments))
        return {444: version if arguments[0] is None else rules}.get(number, 0)

    monkeypatch.setattr(landlock, "_call", call)
    monkeypatch.setattr(landlock, "allow_no_new_privileges", lambda: made.append(("no new",)))
    assert landlock.allow_writes_only_below([tmp_path, tmp_path / "file", tmp_path / "absent"])
    ask, create, folder, file, last, restrict = made
    assert (ask, last) == ((444, None, 0, 1), ("no new",))
    packed = struct.pack(f"{len(fields)}Q", *fields)
    assert (create, restrict) == ((444, packed, 8 * len(fields), 0), (446, rules, 0))
    for added, rights in ((folder, fields[0]), (file, fields[0] & (2 + (1 << 14)))):
        assert (added[:3], added[4], struct.unpack("=Qi", added[3])[0]) == ((445, rules, 1), 0, rights)


def test_system_without_landlock_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_call", lambda *arguments: -1)
    assert landlock.landlock_version() == 0
    assert not landlock.allow_writes_only_below([])
