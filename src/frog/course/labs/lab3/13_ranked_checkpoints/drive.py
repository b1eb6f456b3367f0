"""Runs save on all ranks of several worlds, kills each of two ranks at each moment, and looks what load finds then.

A rank is a process; one runs at a time, from barrier to barrier, in an order that is given: nothing is left to chance.
A moment is before an operation on files, a sync, or a barrier. At each, four ends: the rank is killed; it is killed in
the middle of the write before; the power fails, and files that were not synced are empty; it fails, and folders hold
the names that they held when they were last synced.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
import traceback
from pathlib import Path

OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SYNCED = "synced.txt"
NAMES = "names.jsonl"
KEPT = Path("kept")


class Moments:
    """Counts this process's moments, and ends it before one of them."""

    def __init__(self) -> None:
        self.is_on, self.number, self.last = False, 0, None
        self.deadly, self.names = 0, []

    def at(self, name: str, path: object = None) -> None:
        if not self.is_on:
            return
        self.number += 1
        self.names.append(name)
        if self.number == self.deadly:
            self.is_on = False
            Path(f"died-{os.getpid()}").write_text(json.dumps([name, self.last]))
            os.kill(os.getpid(), signal.SIGKILL)
        self.last = os.path.abspath(os.fsdecode(path)) if name == "open" else None


MOMENTS = Moments()


def hook(event: str, args: tuple) -> None:
    if not MOMENTS.is_on:
        return
    if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        if isinstance(args[2], int) and args[2] & WRITES:
            MOMENTS.at("open", args[0])
    elif event in OPERATIONS:
        MOMENTS.at(event.split(".")[-1])


def fsync(descriptor: object) -> None:
    MOMENTS.at("fsync")
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    was_on, MOMENTS.is_on = MOMENTS.is_on, False
    with open(SYNCED, "a") as file:
        file.write(f"{os.fstat(number).st_ino}\n")
    if stat.S_ISDIR(os.fstat(number).st_mode):
        keep_names(number)
    MOMENTS.is_on = was_on


def keep_names(folder: int) -> None:
    """Note which names an open folder holds, and keep its files, so that a power cut can bring them back."""
    KEPT.mkdir(exist_ok=True)
    names = {}
    for name in os.listdir(folder):
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        names[name] = about.st_ino
        if not stat.S_ISDIR(about.st_mode):
            with contextlib.suppress(FileExistsError):
                os.link(name, KEPT / str(about.st_ino), src_dir_fd=folder, follow_symlinks=False)
    with open(NAMES, "a") as file:
        file.write(json.dumps([os.fstat(folder).st_ino, names]) + "\n")


def run_save(folder: Path, step: int, shards: list[bytes], order: list[int], deadly: dict[int, int]) -> dict:
    """Run save on every rank. What became of each: its moments, "killed", or its error."""
    size = len(shards)
    pipes = [(os.pipe(), os.pipe()) for _ in range(size)]
    pids = []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            for other in others(size, rank):  # else nobody notices that it was killed
                os.close(pipes[other][1][1])
            be(rank, folder, step, shards, pipes[rank], deadly.get(rank, 0))
        pids.append(pid)
    found, waiting, barriers = {}, dict.fromkeys(order), 0
    for _, (_, said) in pipes:
        os.close(said)
    while waiting:
        for rank in list(waiting):
            os.write(pipes[rank][0][1], b"g")
            message = os.read(pipes[rank][1][0], 1 << 16)
            if message == b"barrier":
                continue
            found[rank] = json.loads(message) if message else "killed"
            del waiting[rank]
        if waiting and len(waiting) < size:  # one is gone: those at the barrier are ended
            break
        barriers += bool(waiting)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for (take, go), (tell, _) in pipes:
        for descriptor in (take, go, tell):
            os.close(descriptor)
    return {"found": found, "barriers": barriers, "stuck": sorted(waiting)}


def be(rank: int, folder: Path, step: int, shards: list[bytes], pipes: tuple, deadly: int) -> None:
    """One rank, in a process of its own."""
    (take, _), (_, said) = pipes

    def barrier() -> None:
        MOMENTS.at("barrier")
        was_on, MOMENTS.is_on = MOMENTS.is_on, False
        os.write(said, b"barrier")
        os.read(take, 1)
        MOMENTS.is_on = was_on

    os.read(take, 1)
    try:
        import checkpoint

        MOMENTS.is_on, MOMENTS.deadly = True, deadly
        checkpoint.save(folder, step, rank, len(shards), shards[rank], barrier)
        MOMENTS.is_on = False
        result = {"moments": MOMENTS.names}
    except BaseException as error:
        MOMENTS.is_on = False
        result = {"error": told(error)}
    os.write(said, json.dumps(result).encode())
    signal.pause()


def told(error: BaseException) -> str:
    """The error, and the learner's line."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("checkpoint.py")]
    return f"{type(error).__name__}: {error} (checkpoint.py:{lines[-1] if lines else '?'})"


def run_load(folder: Path, size: int) -> list:
    """What load finds on each rank: None, [step, shard], or an error's text."""
    take, said = os.pipe()
    if (pid := os.fork()) == 0:
        import checkpoint

        found = []
        for rank in range(size):
            try:
                value = checkpoint.load(folder, rank, size)
                found.append(None if value is None else [int(value[0]), hashlib.sha256(value[1]).hexdigest()[:16]])
            except BaseException as error:
                found.append(told(error))
        with open(said, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(said)
    with open(take) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text or '["load ended the process"]')


def files_of(folder: Path) -> dict:
    """Each file by its inode, with what tells whether it was written."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            about = path.stat()
            found[about.st_ino] = (path, about.st_mtime_ns, about.st_size)
    return found


def cut_power(folder: Path, before: dict) -> None:
    """What was written and not synced is empty."""
    synced = {int(line) for line in Path(SYNCED).read_text().split()} if Path(SYNCED).exists() else set()
    for inode, (path, *stamp) in files_of(folder).items():
        if inode not in synced and (inode not in before or tuple(stamp) != before[inode][1:]):
            os.truncate(path, 0)


def lose_names(folder: Path) -> None:
    """Each folder holds what it held when it was last synced."""
    names = dict(json.loads(line) for line in Path(NAMES).read_text().splitlines())
    inode = folder.stat().st_ino
    shutil.rmtree(folder)
    bring_back(folder, inode, names)


def bring_back(folder: Path, inode: int, names: dict) -> None:
    folder.mkdir()
    for name, child in names.get(inode, {}).items():
        if os.path.lexists(KEPT / str(child)):
            os.link(KEPT / str(child), folder / name, follow_symlinks=False)
        else:
            bring_back(folder / name, child, names)


def main() -> None:
    """Write one line of JSON for each end to ends.jsonl."""
    case = json.loads(sys.stdin.read())
    sys.path.insert(0, os.getcwd())
    os.fsync = os.fdatasync = fsync
    import checkpoint

    sys.addaudithook(hook)
    for size in case["sizes"]:
        take_world(size, case["steps"], {step: [s.encode("latin-1") for s in v] for step, v in case["shards"].items()})


def take_world(size: int, steps: list[int], shards: dict[str, list[bytes]]) -> None:
    old, new, later = steps
    of = {step: shards[str(step)][:size] for step in steps}
    base = Path(f"base-{size}").absolute()
    base.mkdir()
    tell(size, "nothing", "", run_load(base, size), {})
    first = run_save(base, old, of[old], list(range(size)), {})
    tell(size, "old", "", run_load(base, size), first)
    place, before = copy(base)
    whole = run_save(place, new, of[new], list(range(size)), {})
    tell(size, "new", "", run_load(place, size), whole)
    cut_power(place, before)
    tell(size, "new, power", "", run_load(place, size), whole)
    lose_names(place)
    tell(size, "new, names", "", run_load(place, size), whole)
    if any("moments" not in one for one in whole["found"].values()) or len(whole["found"]) < size:
        return
    for victim in range(size) if size == 2 else ():
        for number, name in enumerate(whole["found"][victim]["moments"], start=1):
            for order in ([victim, *others(size, victim)], [*others(size, victim), victim]):
                kill_one(base, size, of, (new, later), victim, number, name, order)


def others(size: int, victim: int) -> list[int]:
    return [rank for rank in range(size) if rank != victim]


def copy(base: Path) -> tuple[Path, dict]:
    """A fresh copy, and the files that are in it; as if all of it had been on the disk for long."""
    place = base.with_name("work")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place, symlinks=True)
    Path(SYNCED).unlink(missing_ok=True)
    Path(NAMES).unlink(missing_ok=True)
    shutil.rmtree(KEPT, ignore_errors=True)
    for path in [place, *(path for path in place.rglob("*") if path.is_dir() and not path.is_symlink())]:
        descriptor = os.open(path, os.O_RDONLY)
        keep_names(descriptor)
        os.close(descriptor)
    return place, files_of(place)


def kill_one(base: Path, size: int, of: dict, steps: tuple, victim: int, number: int, name: str, order: list) -> None:
    """The four ends of one moment, and a later save after the first of them."""
    new, later = steps
    place, before = copy(base)
    run = run_save(place, new, of[new], order, {victim: number})
    moment = f"rank {victim} before its {name} (moment {number}), running {'first' if order[0] == victim else 'last'}"
    tell(size, "killed", moment, run_load(place, size), run)
    died = next(iter(Path().glob("died-*")), None)
    last = json.loads(died.read_text())[1] if died else None
    for path in Path().glob("died-*"):
        path.unlink()
    saved = place.with_name("saved")
    shutil.rmtree(saved, ignore_errors=True)
    if last and os.path.isfile(last):
        data = Path(last).read_bytes()
        stamp = os.stat(last)
        os.truncate(last, len(data) // 2)
        tell(size, "torn", f"{moment}, {os.path.relpath(last, place)} half written", run_load(place, size), run)
        with open(last, "r+b") as file:
            file.write(data)
        os.utime(last, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    shutil.copytree(place, saved, symlinks=True)
    cut_power(place, before)
    tell(size, "power", moment, run_load(place, size), run)
    lose_names(place)
    tell(size, "names", moment, run_load(place, size), run)
    run = run_save(saved, later, of[later], list(range(size)), {})
    tell(size, "later", moment, run_load(saved, size), run)


def tell(size: int, end: str, moment: str, loaded: list, run: dict) -> None:
    errors = [one["error"] for one in run.get("found", {}).values() if isinstance(one, dict) and "error" in one]
    about = {"barriers": run.get("barriers", 0), "stuck": run.get("stuck", []), "errors": errors}
    with open("ends.jsonl", "a") as file:
        file.write(json.dumps({"size": size, "end": end, "moment": moment, "loaded": loaded, **about}) + "\n")


if __name__ == "__main__":
    main()
