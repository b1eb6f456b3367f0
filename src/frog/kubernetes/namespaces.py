"""Namespaces of Linux: what processes see of others, of files, of names and of the network. Through the C library.

A user namespace makes the rest possible without root: inside it this process may mount, and outside it is who it was.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

FILES, HOST_NAME, SHARED_MEMORY, USERS, PROCESSES, NETWORK = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_KINDS = {"user": USERS, "mnt": FILES, "uts": HOST_NAME, "ipc": SHARED_MEMORY, "pid": PROCESSES}
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x1000, 0x4000, 0x40000, 0x2, 0x4, 0x8
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_SYS_MOUNT_SETATTR = 442
_AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 0x8000, 0x1
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_new(kinds: int, uid: int, gid: int) -> None:
    """Move this process, which must have one thread, into new namespaces, where it is user `uid` of group `gid`.

    A new namespace of processes is for its children only.
    """
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(kinds | USERS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def join(pid: int) -> None:
    """Move this process into the namespaces of another; children of it join its namespace of processes."""
    handles = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in _KINDS}
    for name, kind in _KINDS.items():
        _check(_libc().setns(handles[name], kind), f"setns {name}")
        os.close(handles[name])


def die_with_parent() -> None:
    """Be killed when the process that started this one is gone."""
    parent = os.getppid()
    _check(_libc().prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # gone in between
        os._exit(1)


def give_up_privileges() -> None:
    """No program that this process starts has capabilities, even as root, nor gets more rights than it has."""
    for number in range(64):
        if _libc().prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:  # past the last one
            break
    _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def separate_mounts() -> None:
    """What is mounted from here on is seen by this process and its children alone."""
    _check(_libc().unshare(FILES), "unshare")
    _check(_libc().mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount --make-private")


def mount_proc(target: str) -> None:
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _check(_libc().mount(b"proc", target.encode(), b"proc", flags, None), f"mount proc on {target}")


def mount_memory(target: str, size_bytes: int | None, mode: str = "1777") -> None:
    """A file system in memory."""
    data = f"mode={mode}" + (f",size={size_bytes}" if size_bytes is not None else "")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    _check(_libc().mount(b"tmpfs", target.encode(), b"tmpfs", flags, data.encode()), f"mount tmpfs on {target}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Show `source`, a file or a folder with all that is mounted in it, at `target`."""
    flags = ctypes.c_ulong(_MS_BIND | _MS_REC)
    _check(_libc().mount(source.encode(), target.encode(), None, flags, None), f"mount --bind {source} {target}")
    if read_only:
        make_read_only(target)


def make_read_only(target: str) -> None:
    """Let nobody write to what is mounted at `target` and below. Needs Linux 5.12."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    at_current_folder = -100
    result = _libc().syscall(
        _SYS_MOUNT_SETATTR, at_current_folder, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    )
    _check(result, f"mount_setattr {target}")


def change_root(root: str) -> None:
    """Make `root`, a mount, this process's root, and let go of the old one."""
    os.chdir(root)
    _check(_libc().pivot_root(b".", b"."), "pivot_root")
    _check(_libc().umount2(b".", _MNT_DETACH), "umount the old root")
    os.chdir("/")


def loopback_up() -> None:
    """Start the loopback interface of a new network: 127.0.0.1 and all of 127.0.0.0/8."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))
