"""Run save on all ranks of several worlds, kill each of two ranks at each moment, and check what load finds then.

A rank is a process; one runs at a time, from barrier to barrier, in a given order, so that runs are deterministic.
A moment is just before a file operation, a sync, or a barrier. Each moment has four ends: the rank is killed; it is
killed in the middle of the previous write; the power fails, and files that were not synced are empty; the power fails,
and folders hold the names of their last sync, or those and one name that has changed since. Many ends leave equal
folders: load, and the save after a kill, run once for each of them.
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
from collections.abc import Iterator
from pathlib import Path

OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SYNCED = "synced.txt"
NAMES = "names.jsonl"
OPENED = "opened.jsonl"
KEPT = Path("kept")


class OutsideFolderError(PermissionError):
    """Raised when the learner's code opens a file outside the checkpoint's folder."""


class Moments:
    """Counts this process's moments, and ends it before one of them."""

    def __init__(self) -> None:
        self.is_on, self.number, self.last = False, 0, None
        self.deadly, self.names = 0, []
        self.folder, self.pause = "", None

    def at(self, name: str, path: object = None) -> None:
        if not self.is_on:
            return
        if name == "open" and not os.path.abspath(os.fsdecode(path)).startswith((self.folder, sys.prefix)):
            raise OutsideFolderError(f"{os.fsdecode(path)} is outside the checkpoint's folder")
        self.number += 1
        self.names.append(name)
        if name == "open":
            self.note(os.path.abspath(os.fsdecode(path)))
        if self.pause is not None and name != "barrier":
            self.pause()
        if self.number == self.deadly:
            self.is_on = False
            Path(f"died-{os.getpid()}").write_text(json.dumps([name, self.last]))
            os.kill(os.getpid(), signal.SIGKILL)
        self.last = os.path.abspath(os.fsdecode(path)) if name == "open" else None

    def note(self, path: str) -> None:
        """Record which process opens which file for writing."""
        self.is_on = False
        with open(OPENED, "a") as file:
            file.write(json.dumps([os.getpid(), path]) + "\n")
        self.is_on = True


MOMENTS = Moments()
LOADED: dict[tuple, list] = {}
"""What load found in a folder, by the folder's state and the size of the world."""
SAVED_AGAIN: dict[tuple, tuple] = {}
"""How a save after a kill ended, and what load found then, by the folder's state and the step."""


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
        file.write(f"{os.fstat(number).st_ino} {os.fstat(number).st_size}\n")
    if stat.S_ISDIR(os.fstat(number).st_mode):
        keep_names(number)
    MOMENTS.is_on = was_on


def keep_names(folder: int) -> None:
    """Record the names in an open folder, and keep its files, so that a power cut can restore them."""
    with open(NAMES, "a") as file:
        file.write(json.dumps([os.fstat(folder).st_ino, names_in(folder)]) + "\n")


def names_in(folder: int) -> dict:
    """Return the inode of each name in an open folder; keep its files."""
    KEPT.mkdir(exist_ok=True)
    names = {}
    for name in os.listdir(folder):
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        names[name] = about.st_ino
        if not stat.S_ISDIR(about.st_mode):
            with contextlib.suppress(FileExistsError):
                os.link(name, KEPT / str(about.st_ino), src_dir_fd=folder, follow_symlinks=False)
    return names


def run_save(
    folder: Path, step: int, shards: list[bytes], order: list[int], deadly: dict[int, int], in_turn: bool = False
) -> dict:
    """Run save on every rank. Return for each its moments, "killed", or its error.

    A rank runs from barrier to barrier; `in_turn`, from moment to moment.
    """
    size = len(shards)
    pipes = [(os.pipe(), os.pipe()) for _ in range(size)]
    pids = []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            for other in others(size, rank):  # else no rank notices that it was killed
                os.close(pipes[other][1][1])
            be(rank, folder, step, shards, pipes[rank], deadly.get(rank, 0), in_turn)
        pids.append(pid)
    found, waiting, barriers, there = {}, dict.fromkeys(order), 0, set()
    for _, (_, said) in pipes:
        os.close(said)
    while waiting:
        for rank in [rank for rank in waiting if rank not in there]:
            os.write(pipes[rank][0][1], b"g")
            message = os.read(pipes[rank][1][0], 1 << 16)
            if message == b"barrier":
                there.add(rank)
            elif message != b"moment":
                found[rank] = json.loads(message) if message else "killed"
                del waiting[rank]
        if len(there) < len(waiting):
            continue
        if waiting and len(waiting) < size:  # one rank is gone: end those at the barrier
            break
        barriers += bool(waiting)
        there.clear()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for (take, go), (tell, _) in pipes:
        for descriptor in (take, go, tell):
            os.close(descriptor)
    return {"found": found, "barriers": barriers, "stuck": sorted(waiting)}


def be(rank: int, folder: Path, step: int, shards: list[bytes], pipes: tuple, deadly: int, in_turn: bool) -> None:
    """Run one rank, in a separate process."""
    (take, _), (_, said) = pipes

    def wait(what: bytes) -> None:
        was_on, MOMENTS.is_on = MOMENTS.is_on, False
        os.write(said, what)
        os.read(take, 1)
        MOMENTS.is_on = was_on

    def barrier() -> None:
        MOMENTS.at("barrier")
        wait(b"barrier")

    os.read(take, 1)
    try:
        import checkpoint

        MOMENTS.is_on, MOMENTS.deadly, MOMENTS.folder = True, deadly, f"{folder}{os.sep}"
        MOMENTS.pause = (lambda: wait(b"moment")) if in_turn else None
        checkpoint.save(folder, step, rank, len(shards), shards[rank], barrier)
        MOMENTS.is_on = False
        result = {"moments": MOMENTS.names}
    except BaseException as error:
        MOMENTS.is_on = False
        result = {"error": told(error)}
    os.write(said, json.dumps(result).encode())
    signal.pause()


def told(error: BaseException) -> str:
    """Return the error, and the learner's line."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("checkpoint.py")]
    return f"{type(error).__name__}: {error} (checkpoint.py:{lines[-1] if lines else '?'})"


def run_load(folder: Path, size: int) -> list:
    """Return what load finds on each rank, from an equal folder if load has seen one and left it unchanged."""
    state = state_of(folder)
    if (state, size) in LOADED:
        return LOADED[state, size]
    found = load_in_fork(folder, size)
    if state_of(folder) == state:
        LOADED[state, size] = found
    return found


def state_of(folder: Path) -> tuple:
    """Return all that load can read: names in their order, modes, bytes, and the order of all times.

    Content that refers to a place outside the folder, which may differ next time, equals no other.
    """
    entries, times = [], []
    for root, folders, files in os.walk(folder):
        for path in [os.path.join(root, name) for name in folders + files] + [root]:
            about = os.lstat(path)
            is_link, is_file = stat.S_ISLNK(about.st_mode), stat.S_ISREG(about.st_mode)
            data = os.fsencode(os.readlink(path)) if is_link else Path(path).read_bytes() if is_file else b""
            outside = (is_link and (data[:1] == b"/" or b".." in data)) or os.fsencode(os.getcwd()) in data
            times.append((about.st_mtime_ns, about.st_ctime_ns))
            entries.append((path, about.st_mode, object() if outside else data))
    return tuple(entries), *(tuple(map(sorted(set(kind)).index, kind)) for kind in zip(*times, strict=True))


def load_in_fork(folder: Path, size: int) -> list:
    """Return what load finds on each rank: None, [step, shard], or an error's text."""
    take, said = os.pipe()
    if (pid := os.fork()) == 0:
        import checkpoint

        found = []
        for rank in range(size):
            try:
                value = checkpoint.load(folder, rank, size)
                found.append(None if value is None else [int(value[0]), digest(value[1])])
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
    """Return each file by its inode, with values that change when it is written."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            about = path.stat()
            found[about.st_ino] = (path, about.st_mtime_ns, about.st_size)
    return found


def cut_power(folder: Path, before: dict) -> None:
    """Drop unsynced writes: a whole file, or everything after its last sync."""
    lines = Path(SYNCED).read_text().splitlines() if Path(SYNCED).exists() else []
    synced = dict(map(int, line.split()) for line in lines)
    for inode, (path, *stamp) in files_of(folder).items():
        if inode not in before or tuple(stamp) != before[inode][1:]:
            os.truncate(path, min(synced.get(inode, 0), stamp[1]))


def lose_names(folder: Path) -> Iterator[str]:
    """Bring the folder into each state in which a power cut may leave it; yield the change that reached the disk.

    In the first state each folder has the contents of its last sync, and no later change has reached the disk.
    """
    synced = dict(map(json.loads, Path(NAMES).read_text().splitlines()))
    inode, changes = folder.stat().st_ino, list(changes_of(folder, synced, synced))
    for what, names in [("", synced), *changes]:
        shutil.rmtree(folder)
        bring_back(folder, inode, names)
        yield what


def changes_of(folder: Path, synced: dict, names: dict) -> Iterator[tuple[str, dict]]:
    """Yield each change of a name since its folder's last sync, with the names of all folders if only it is on disk.

    names: the names that lead to this folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    inode, now = os.fstat(descriptor).st_ino, names_in(descriptor)
    os.close(descriptor)
    before = synced.get(inode, {})
    for name in sorted({*before, *now}):
        kept = {key: value for key, value in before.items() if key != name}
        kept |= {name: now[name]} if name in now else {}
        if kept != before:
            yield name, {**names, inode: kept}
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            yield from changes_of(folder / name, synced, {**names, inode: kept})


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
    tell(size, "old", "", run_load(base, size), first, missing=missing(base, of[old]))
    place, before = copy(base)
    whole = run_save(place, new, of[new], list(range(size)), {})
    tell(size, "new", "", run_load(place, size), whole, missing=missing(place, of[new]))
    with times_turned_round(place):
        tell(size, "new, times", "", run_load(place, size), whole)
    cut_power(place, before)
    tell(size, "new, power", "", run_load(place, size), whole)
    tell_lost_names(place, size, "new, ", "", whole)
    if any("moments" not in one for one in whole["found"].values()) or len(whole["found"]) < size:
        return
    place, _ = copy(base)
    for step in (new, later):
        run = run_save(place, step, of[step], [*reversed(range(size))], {}, in_turn=True)
    tell(size, "in turn", "", run_load(place, size), run, shared=opened_by_many())
    for victim in range(size) if size == 2 else ():
        for number, name in enumerate(whole["found"][victim]["moments"], start=1):
            for order in ([victim, *others(size, victim)], [*others(size, victim), victim]):
                kill_one(base, size, of, (new, later), victim, number, name, order)


@contextlib.contextmanager
def times_turned_round(folder: Path) -> Iterator[None]:
    """Reverse the times of the files, as after a copy that does not keep times."""
    stamps = {path: path.stat() for path in [folder, *folder.rglob("*")] if not path.is_symlink()}
    for path, about in stamps.items():
        os.utime(path, ns=(10**18, 2 * 10**18 - about.st_mtime_ns))
    yield
    for path, about in stamps.items():
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def others(size: int, victim: int) -> list[int]:
    return [rank for rank in range(size) if rank != victim]


def copy(base: Path) -> tuple[Path, dict]:
    """Return a fresh copy, and its files, as if all of them had been on the disk for a long time."""
    place = base.with_name("work")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place, symlinks=True)
    Path(SYNCED).unlink(missing_ok=True)
    Path(NAMES).unlink(missing_ok=True)
    Path(OPENED).unlink(missing_ok=True)
    shutil.rmtree(KEPT, ignore_errors=True)
    for path in [place, *(path for path in place.rglob("*") if path.is_dir() and not path.is_symlink())]:
        descriptor = os.open(path, os.O_RDONLY)
        keep_names(descriptor)
        os.close(descriptor)
    return place, files_of(place)


def kill_one(base: Path, size: int, of: dict, steps: tuple, victim: int, number: int, name: str, order: list) -> None:
    """Run the four ends of one moment, and a later save after the first of them."""
    new, later = steps
    place, before = copy(base)
    run = run_save(place, new, of[new], order, {victim: number})
    moment = f"rank {victim} before its {name} (moment {number}), running {'first' if order[0] == victim else 'last'}"
    loaded = run_load(place, size)
    tell(size, "killed", moment, loaded, run, **traces(base, place, of, new, loaded))
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
    tell_lost_names(place, size, "", moment, run)
    goes_on = order[0] == victim or any(not found or found[0] == new for found in loaded)  # else from the old one
    step = later if goes_on else new
    if (again := (state_of(saved), step)) not in SAVED_AGAIN:
        run = run_save(saved, step, of[step], list(range(size)), {})
        SAVED_AGAIN[again] = run_load(saved, size), run
    tell(size, "later" if goes_on else "again", moment, *SAVED_AGAIN[again])


def opened_by_many() -> list[str]:
    """Return the files that more than one rank of a save opened for writing."""
    text = Path(OPENED).read_text() if Path(OPENED).exists() else ""
    ranks: dict[str, set[int]] = {}
    for pid, path in map(json.loads, text.splitlines()):
        ranks.setdefault(path, set()).add(pid)
    return sorted(path for path, pids in ranks.items() if len(pids) > 1)


def missing(place: Path, shards: list[bytes]) -> list[int]:
    """Return the ranks whose shard is in no file."""
    texts = [path.read_bytes() for path in place.rglob("*") if path.is_file()]
    return [rank for rank, shard in enumerate(shards) if not any(shard in text for text in texts)]


def digest(shard: bytes) -> str:
    return hashlib.sha256(shard).hexdigest()[:16]


def traces(base: Path, place: Path, of: dict, new: int, loaded: list) -> dict:
    """Return the files behind a load that does not find one complete checkpoint.

    `lost`: files that the old checkpoint had. `unmarked`: what load finds without the new files that hold no shard.
    """
    if any(loaded == [[step, digest(shard)] for shard in shards] for step, shards in of.items()):
        return {}
    kept = [path.relative_to(base) for path in base.rglob("*") if path.is_file()]
    lost = [str(path) for path in kept if not (place / path).is_file()]
    bare = place.with_name("bare")
    shutil.rmtree(bare, ignore_errors=True)
    shutil.copytree(place, bare, symlinks=True)
    for path in [path for path in bare.rglob("*") if path.is_file() and not path.is_symlink()]:
        if not any(shard in path.read_bytes() for shard in of[new]):
            was = base / path.relative_to(bare)
            path.write_bytes(was.read_bytes()) if was.is_file() else path.unlink()
    return {"missing": missing(place, of[new]), "lost": lost, "unmarked": run_load(bare, len(loaded))}


def tell_lost_names(place: Path, size: int, kind: str, moment: str, run: dict) -> None:
    """Run the ends of a power cut that loses all names that were not synced, or all but one."""
    for what in lose_names(place):
        end = f"{kind}some names" if what else f"{kind}names"
        tell(size, end, moment, run_load(place, size), run, kept=what)


def tell(size: int, end: str, moment: str, loaded: list, run: dict, **more: object) -> None:
    errors = [one["error"] for one in run.get("found", {}).values() if isinstance(one, dict) and "error" in one]
    about = {"barriers": run.get("barriers", 0), "stuck": run.get("stuck", []), "errors": errors, **more}
    with open("ends.jsonl", "a") as file:
        file.write(json.dumps({"size": size, "end": end, "moment": moment, "loaded": loaded, **about}) + "\n")


if __name__ == "__main__":
    main()
