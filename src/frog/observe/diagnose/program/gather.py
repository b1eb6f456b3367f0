"""Fill one `Evidence` from a folder or file: each file goes to the reader that recognizes its content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from frog.core.errors import RunError
from frog.core.files import open_plain
from frog.core.terminal import printable
from frog.observe.diagnose.known_errors.explain import LogReader
from frog.observe.diagnose.known_errors.read import STDIN, read_named
from frog.observe.diagnose.program.code_lines import add_stacks, is_stack_dump
from frog.observe.diagnose.program.evidence import Evidence, Group
from frog.observe.diagnose.program.flight_recorder import DumpError, add_dump, decode_dump
from frog.observe.diagnose.program.peer_errors import add_awaited_messages, mark_failed_calls
from frog.observe.diagnose.program.program_logs import add_error_file, add_log, add_sacct, decode_error_file
from frog.observe.diagnose.program.run_folder_evidence import add_run

_MOST_FILES = 20_000
_MOST_BYTES = 64 << 20
_HEAD, _TAIL = 2 << 20, 8 << 20
"""Bytes to read at the beginning and at the end of a log."""
_MOST_TEXT = 96 << 20
"""Most bytes of all logs."""
_DATA = re.compile(r"\.(json|pickle|pkl|bin|dump)$|^[^.]+$|_\d+$", re.IGNORECASE)
_TEXT = re.compile(r"\.(log|txt|out|err|stdout|stderr|sacct|[oe]\d+)$|^[^.]+$|\.\d+$", re.IGNORECASE)
READABLE = (
    "run folders of `frog run`, flight-recorder dumps of torch, torchrun's error files, Slurm's output and `sacct` "
    "text, logs of the ranks, and `py-spy dump` text"
)


def gather(path: Path | str, attempt: int = 0) -> Evidence:
    """Read all evidence in a folder or file.

    Raises:  RunError if there is none.
    """
    return gather_all([path], attempt)


def gather_all(paths: Sequence[Path | str], attempt: int = 0) -> Evidence:
    """Read all evidence in folders and files of one program; "-" is standard input.

    Raises:  RunError if there is none; UsageError if a file cannot be read.
    """
    where = ", ".join(map(str, paths))
    evidence, reader = Evidence(where), LogReader()
    evidence.log_reader = reader
    for path in map(Path, paths):
        if path.is_dir():
            add_run(evidence, path, attempt)
            _add_files(evidence, path, list(_files(path, attempt)), named=path.name if len(paths) > 1 else "")
        else:
            _add_named(evidence, path)
    _use_tasks(evidence)
    _name_default_group(evidence)
    add_awaited_messages(evidence)
    mark_failed_calls(evidence)
    _add_lines(evidence)
    explanation = reader.explanation()
    named = any(not Path(path).is_dir() for path in paths)
    says = named or explanation.cause or explanation.consequences or explanation.unknown or explanation.last_step
    if not evidence.ranks and not evidence.files and not (reader.lines and says):
        why = "".join(f"; {problem}" for problem in evidence.problems[:3])
        raise RunError(f"{where}: no evidence of a run{why}", f"frog diagnose reads {READABLE}")
    evidence.explanation, evidence.log_reader = explanation, None
    return evidence


def _add_named(evidence: Evidence, path: Path) -> None:
    """Add a file that the user named, which is read whatever its name is."""
    data, name = read_named(str(path)), printable(str(path))
    rank = rank_in_name(path.name) if name != STDIN else None
    is_evidence = data[:1] in (b"\x80", b"{") and len(data) <= _MOST_BYTES and _add_data(evidence, data, name, rank)
    if not is_evidence and data[:1] != b"\x80":
        is_evidence = _add_text(evidence, data.decode("utf-8", "replace"), name, rank)
    if is_evidence:
        evidence.files.append(name)


def _add_files(evidence: Evidence, path: Path, files: list[Path], named: str = "") -> None:
    """Add the files of a folder; named: the folder's name, if the user named several paths."""
    names = {file: printable(str(PurePath(named, file.relative_to(path)))) for file in files}
    numbered = ranks_by_number(names.values())
    budget = _MOST_TEXT
    for file, name in names.items():
        rank = rank_in_name(name)
        budget -= _add_file(evidence, file, name, numbered.get(name) if rank is None else rank, budget)
    if budget <= 0:
        evidence.problems.append(f"{path}: more than {_MOST_TEXT >> 20} MiB of logs; the last files were not read")


def _files(path: Path, attempt: int) -> Iterator[Path]:
    """Yield the files below a folder, in order; without those of the observer and of other attempts."""
    number = 0
    for root, folders, names in os.walk(path):
        within = Path(root).relative_to(path).parts
        folders[:] = sorted(name for name in folders if _is_read((*within, name), attempt))
        for name in sorted(names):
            number += 1
            if number > _MOST_FILES:
                return
            yield Path(root) / name


def _is_read(parts: tuple[str, ...], attempt: int) -> bool:
    """True for a folder whose files are read one by one."""
    if parts[-1].startswith(".") or parts == ("checkpoints",):
        return False
    if parts[0] != "observed" or len(parts) == 1:
        return True
    return len(parts) == 2 and parts[1] == f"attempt_{attempt}"


def _add_file(evidence: Evidence, file: Path, name: str, rank: int | None, text_bytes: int) -> int:
    """Add a file to the evidence if a reader recognizes it; return the number of bytes of text that were read."""
    is_data, is_text = (pattern.search(file.name) is not None for pattern in (_DATA, _TEXT))
    if not (is_data or is_text):
        return 0
    try:
        with open_plain(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            start = opened.read(4096)
            if is_data and size <= _MOST_BYTES and start[:1] in (b"\x80", b"{"):
                if _add_data(evidence, start + opened.read(_MOST_BYTES), name, rank):
                    evidence.files.append(name)
                return 0
            if not is_text or b"\0" in start or text_bytes <= 0:
                return 0
            data = start + opened.read(_HEAD)
            if size > _HEAD + _TAIL:
                opened.seek(size - _TAIL)
            data += opened.read(_TAIL)
    except OSError as error:
        evidence.problems.append(f"{name}: cannot be read: {error.strerror}")
        return 0
    if _add_text(evidence, data.decode("utf-8", "replace"), name, rank):
        evidence.files.append(name)
    return len(data)


def _add_data(evidence: Evidence, data: bytes, name: str, rank: int | None) -> bool:
    try:
        dump = decode_dump(data)
    except DumpError:
        evidence.problems.append(f"{name}: a flight-recorder dump that is damaged or incomplete; it was not read")
        return False
    if dump is not None:
        return add_dump(evidence, dump, name, number_at_end(name) if rank is None else rank)
    if (error := decode_error_file(data)) is not None:
        add_error_file(evidence, error, name, rank)
        return True
    return False


def _add_text(evidence: Evidence, text: str, name: str, rank: int | None) -> bool:
    if is_stack_dump(text):
        return add_stacks(evidence, text, name, number_at_end(name) if rank is None else rank)
    return add_sacct(evidence, text, name) or add_log(evidence, text, name, rank)


def _use_tasks(evidence: Evidence) -> None:
    """Take the tasks of srun as ranks, unless torchrun started the ranks."""
    if evidence.by_torchrun:
        return
    for task, (code, source) in evidence.tasks.items():
        rank = evidence.of(task)
        rank.add_source(source)
        if rank.exit_code is None:
            rank.exit_code, rank.exit_source = code, source


_DEFAULT = Group((), "0")


def _name_default_group(evidence: Evidence) -> None:
    """Give the group that init_process_group creates its members, where a rank's record does not name them.

    torch forgets them in destroy_process_group, and gloo's dumps never have them.
    """
    members = tuple(evidence.world)
    if len(members) < 2:
        return
    world = Group(members, "0")
    for rank in evidence.ranks.values():
        rank.calls = [replace(call, group=world) if call.group == _DEFAULT else call for call in rank.calls]
        for counts in (rank.enqueued, rank.completed):
            if _DEFAULT in counts:
                counts[world] = counts.pop(_DEFAULT)


def _add_lines(evidence: Evidence) -> None:
    """Add the lines of calls that a rank recorded without: those of its peers' calls with the same number and form."""
    known = {
        (call.group, call.seq, call.op, call.elements): call.line
        for rank in evidence.ranks.values()
        for call in rank.calls
        if call.line is not None and not call.p2p
    }
    for rank in evidence.ranks.values():
        rank.calls = [
            replace(call, line=known.get((call.group, call.seq, call.op, call.elements))) if call.line is None else call
            for call in rank.calls
        ]


# ---- the rank that a file's name tells -------------------------------------------------------------------------------

_MOST_RANK = 2**20
_NAMED = re.compile(r"(?:rank|task|proc)[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_OF_A_NODE = re.compile(r"(?:node|host|machine|server)s?[_.-]?$", re.IGNORECASE)
_LAST = re.compile(r"^(.*?)(\d{1,7})(\D*)$")


def rank_in_name(path: str) -> int | None:
    """Return the rank in `nccl_trace_rank_3`, `rank_3/train.log`, or torchrun's `attempt_0/3/stderr.log`."""
    parts = PurePath(path).parts[-3:]
    for part in reversed(parts[-2:]):
        match = _NAMED.search(part)
        if match and int(match[1]) < _MOST_RANK:
            return int(match[1])
    if len(parts) == 3 and re.fullmatch(r"attempt_\d{1,7}", parts[0]) and re.fullmatch(r"\d{1,6}", parts[1]):
        return int(parts[1])
    return None


def number_at_end(path: str) -> int | None:
    """Return the last number in a file's name, for a kind of file that has one per rank."""
    match = _LAST.match(PurePath(path).name)
    return int(match[2]) if match and int(match[2]) < _MOST_RANK else None


def ranks_by_number(paths: Iterable[str]) -> dict[str, int]:
    """Return the ranks of files whose names differ only in a number, if the numbers are 0, 1, 2 and so on.

    The output of a node's launcher, such as `job-node0.out`, is of several ranks.
    """
    sets: dict[tuple[str, str, str], dict[str, int]] = {}
    for path in paths:
        pure = PurePath(path)
        if (match := _LAST.match(pure.name)) and not _OF_A_NODE.search(match[1]):
            sets.setdefault((str(pure.parent), match[1], match[3]), {})[path] = int(match[2])
    numbered: dict[str, int] = {}
    for found_ranks in sets.values():
        if len(found_ranks) > 1 and sorted(found_ranks.values()) == list(range(len(found_ranks))):
            numbered.update(found_ranks)
    return numbered
