"""Linux namespaces and mounts, through the C library: separate files, host name, processes and network for a process.

A user namespace makes the other kinds possible without root: inside it, this process may mount file systems; outside,
it keeps its user and its rights.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
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
_AT_CURRENT_FOLDER, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def call_libc(name: str, *arguments: int | bytes | ctypes.c_ulong | None, what: str | None = None) -> None:
    """Call a function of the C library that returns 0 on success.

    Raises:  OSError whose message begins with `what`, by default the function's name; also if this system, such as
             macOS, has no such function.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, name):
        raise OSError(errno.ENOSYS, f"{what or name}: {os.strerror(errno.ENOSYS)}")
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or name}: {os.strerror(number)}")


def unshare(kinds: int) -> None:
    """Move this process into new namespaces. A new process namespace is for its children only.

    Raises:  PermissionError if this process lacks the privilege; another OSError if the system is out of namespaces.
    """
    call_libc("unshare", kinds)


def unshare_as(kinds: int, uid: int, gid: int) -> None:
    """Move this process into a new user namespace, as user `uid` of group `gid`, and into new `kinds` below it.

    Assumes: this process has one thread.
    Raises:  OSError if the system forbids that.
    """
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    unshare(kinds | USERS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {outer_uid} 1"), ("gid_map", f"{gid} {outer_gid} 1")):
        Path("/proc/self", name).write_text(text)


def unshare_as_same_user(kinds: int) -> bool:
    """Move this process into new namespaces, through a user namespace with the same user id if it is not privileged.

    Return True if this created a user namespace.

    Raises:  OSError if the system allows neither.
    """
    try:
        unshare(kinds)
    except PermissionError:
        unshare_as(kinds, os.geteuid(), os.getegid())
        return True
    return False


def join(pid: int) -> None:
    """Move this process into the namespaces of another; its children join that process's pid namespace."""
    handles = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in _KINDS}
    for name, kind in _KINDS.items():
        call_libc("setns", handles[name], kind, what=f"setns {name}")
        os.close(handles[name])


def die_with_parent() -> None:
    """Ask the system to kill this process when its parent ends."""
    parent = os.getppid()
    call_libc("prctl", _PR_SET_PDEATHSIG, 9, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended in between
        os._exit(1)


def give_up_privileges() -> None:
    """Drop all capabilities for programs that this process starts, and keep them from gaining privileges."""
    for number in range(64):
        try:
            call_libc("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
        except OSError:  # beyond the last capability
            break
    allow_no_new_privileges()


def allow_no_new_privileges() -> None:
    """Keep programs that this process starts from gaining privileges, as with setuid."""
    call_libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def separate_mounts() -> None:
    """Hide later mounts of this process and its children from all other processes."""
    unshare(FILES)
    _mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, what="mount --make-private")


def mount_proc(target: str) -> None:
    """Mount /proc of this pid namespace at `target`."""
    _mount(b"proc", target.encode(), b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, what=f"mount proc on {target}")


def mount_memory(target: str, size_bytes: int | None, mode: str = "1777") -> None:
    """Mount a file system in memory at `target`."""
    data = f"mode={mode}" + (f",size={size_bytes}" if size_bytes is not None else "")
    flags = _MS_NOSUID | _MS_NODEV
    _mount(b"tmpfs", target.encode(), b"tmpfs", flags, data.encode(), what=f"mount tmpfs on {target}")


def mount_overlay(target: str, lower: str, upper: str, work: str) -> None:
    """Show the files of `lower` at `target`; what is written there goes to `upper`, and `lower` never changes.

    `upper` and `work` are empty folders of one file system. No path may have a comma, a colon or a backslash.
    """
    data = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    flags = _MS_NOSUID | _MS_NODEV
    _mount(b"overlay", target.encode(), b"overlay", flags, data.encode(), what=f"mount overlay on {target}")


def mount_points() -> list[str]:
    """Return the paths at which this process sees mounts, parents first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines)


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Show `source`, a file or a folder with all mounts below it, at `target`."""
    flags = _MS_BIND | _MS_REC
    _mount(source.encode(), target.encode(), None, flags, what=f"mount --bind {source} {target}")
    if read_only:
        make_read_only(target)


def _mount(
    source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None, *, what: str
) -> None:
    call_libc("mount", source, target, kind, ctypes.c_ulong(flags), data, what=what)


def make_read_only(target: str) -> None:
    """Make the mount at `target` and all mounts below it read-only. Needs Linux 5.12."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = (_AT_CURRENT_FOLDER, target.encode(), _AT_RECURSIVE, attributes, len(attributes))
    call_libc("syscall", _SYS_MOUNT_SETATTR, *arguments, what=f"mount_setattr {target}")


def change_root(root: str) -> None:
    """Make `root`, which must be a mount, this process's root, and unmount the old one."""
    os.chdir(root)
    call_libc("pivot_root", b".", b".")
    call_libc("umount2", b".", _MNT_DETACH, what="umount the old root")
    os.chdir("/")


def loopback_up() -> None:
    """Start the loopback interface of a new network: 127.0.0.1 and all of 127.0.0.0/8."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))
