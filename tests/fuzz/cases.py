"""Cases with wrong input, each checked against Frog's promises.

No traceback, no hang, no flood of output, no more than 2 GiB of memory, no control bytes on the terminal, no writes
outside the command's paths, no lost files, no value that becomes a command. (seed, number) determines a case, so that
it can be repeated alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import random
import resource
import shlex
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import targets
import wrong_files
from promises import MOST_OUTPUT, check_kept, check_output, hear, is_allowed, run_job, written
from sandbox import Sandbox

from frog.core.errors import FrogError
from frog.learn import drill

HANG_S = 20
"""Processor time, because other programs may use the machine."""
BLOCKED_S = 60
MOST_MEMORY = 2 << 30
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finding:
    """A broken promise."""

    seed: int
    number: int
    own: bool
    """True if the case ran in its own process."""
    what: str
    said: str
    where: str = ""
    """Last line of Frog's source in the traceback; one finding per line is enough."""

    def __str__(self) -> str:
        return f"--seed {self.seed} --only {self.number}{' --own' * self.own}: {self.what}\n    {self.said}"


@dataclass
class Case:
    """One case: a command, and the damage done before it runs."""

    target: targets.Target
    words: list[str]
    how: str
    path: str
    """Path of the damaged file, relative to the sandbox."""
    text: str
    writes: tuple[str, ...]
    code: int = 0
    """The exit code."""

    @property
    def is_renamed(self) -> bool:
        """True if a name was damaged."""
        return self.how.startswith("named ")

    def __str__(self) -> str:
        return f"frog {shlex.join(self.words)[:300]!r} with {self.path}: {self.how}"


def draw(rng: random.Random, sandbox: Sandbox, processes: bool) -> Case:
    """Choose a target, and damage one of its files, its name, or a word of the command."""
    among = targets.PROCESSES if processes else targets.TARGETS
    target = rng.choices(among, [each.share for each in among])[0]
    text = wrong_files.hostile_text(rng, target.good)
    words = [word.replace("{text}", wrong_files.as_argument(text)) for word in shlex.split(target.words)]
    name = rng.choice(sandbox.files(target.files))
    if target.names and rng.random() < 0.15:
        old = sandbox.folder / target.names
        new = wrong_files.rename(rng, old)
        if new is not None:
            place = str(new.relative_to(sandbox.folder))
            renamed = {target.names: place, old.name: new.name, old.stem: new.name}
            words = [renamed.get(word, word) for word in words]
            writes = (*target.writes, *([f"{place}/"] if target.writes else []))
            return Case(target, words, f"named {new.name!r}", target.names, text, writes)
    if "{text}" in target.words and rng.random() < 0.7:
        return Case(target, words, f"the text {text[:60]!r}", name, text, target.writes)
    return Case(target, words, wrong_files.spoil(rng, sandbox.folder / name), name, text, target.writes)


class _Output(io.TextIOWrapper):
    """A program's output, encoded as strictly as for a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def data(self) -> bytes:
        return self.buffer.getvalue()  # type: ignore[attr-defined]


def run_case(seed: int, number: int, sandbox: Sandbox, processes: bool) -> tuple[list[Finding], Case, float]:
    """Draw a case and run it; return its findings, none if Frog keeps all promises."""
    case = draw(random.Random(f"{seed}/{number}"), sandbox, processes)
    spoiled = sandbox.folder / case.path
    content = spoiled.read_bytes() if os.access(spoiled, os.R_OK) and stat.S_ISREG(spoiled.lstat().st_mode) else b""
    before = sandbox.look() if case.is_renamed else sandbox.look_after(case.path)
    written.clear()
    start = time.process_time()
    problem, where = None, ""
    if os.access(sandbox.folder / case.target.folder, os.X_OK):
        problem, where = _in_process(case, sandbox) if processes else _here(case, sandbox)
    took_s = time.process_time() - start
    found = [(problem, where)] if problem else []
    if took_s > HANG_S:
        found.append((f"took {took_s:.0f} s", "hang"))
    outside = [path for path in written if not is_allowed(path, sandbox.folder)] + sandbox.strays()
    if outside:
        found.append((f"wrote outside: {outside[:3]}", f"outside, {case.target.words}"))
    sandbox.open_folders()
    after = sandbox.look()
    kept = check_kept(sandbox, before, after, case.writes or ("nothing",), case.code != 0, (case.path, content))
    found += [(said, f"kept, {case.target.words}") for said in kept]
    if os.path.lexists(os.environ["EVIL"]):
        os.unlink(os.environ["EVIL"])
        found.append(("a value became a command", f"command, {case.target.words}"))
    sandbox.restore(after)
    return [Finding(seed, number, processes, str(case), said, where) for said, where in found], case, took_s


def _here(case: Case, sandbox: Sandbox) -> tuple[str | None, str]:
    from frog.cli import main

    out = _Output()
    os.chdir(sandbox.folder / case.target.folder)
    kept = sys.stdout, sys.stderr, sys.stdin
    sys.stdout = sys.stderr = out
    sys.stdin = io.TextIOWrapper(io.BytesIO(_answers(case)))
    signal.alarm(BLOCKED_S)
    try:
        if case.target.read is not None:
            return _read(case, sandbox.folder / case.path)
        case.code = main(case.words)
    except SystemExit as error:
        case.code = error.code if isinstance(error.code, int) else 99
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]!r} {_last_lines()}", _place_of(error)
    finally:
        signal.alarm(0)
        sys.stdout, sys.stderr, sys.stdin = kept
    if case.target.is_job and case.code == 0:
        run_job(out.data, sandbox.folder)
    return _judge(case, out.data)


def _read(case: Case, path: Path) -> tuple[str | None, str]:
    assert case.target.read is not None
    try:
        case.target.read(path, case.text)
    except FrogError as error:
        if len(str(error)) > MOST_OUTPUT:
            return f"an error of {len(str(error))} characters", f"long, {case.target.words}"
    except PermissionError as error:  # for every command, frog reports the file and the reason
        if error.filename is None:
            raise
    return None, ""


def _judge(case: Case, data: bytes) -> tuple[str | None, str]:
    if case.code not in (0, 1, 2):
        return f"exit code {case.code}: {data[-800:]!r}", f"code, {case.target.words}"
    return check_output(data), f"output, {case.target.words}"


def _answers(case: Case) -> bytes:
    """Return the input for a command that asks."""
    return f"1\n{case.text[:20_000]}\nb\n\n2\nreduce\nq\n".encode(errors="surrogatepass")


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "src/frog" in frame.filename]
    return f"{own[-1].filename.partition('src/')[2]}:{own[-1].lineno} {type(error).__name__}" if own else "?"


def _last_lines() -> str:
    frames = [frame for frame in traceback.extract_tb(sys.exc_info()[2]) if "src/frog" in frame.filename]
    return " < ".join(f"{frame.filename.partition('src/frog/')[2]}:{frame.lineno}" for frame in reversed(frames[-4:]))


def _in_process(case: Case, sandbox: Sandbox) -> tuple[str | None, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "FROG_START": "spawn"}
    process = subprocess.Popen(
        [sys.executable, "-m", "frog.cli", *case.words], cwd=sandbox.folder / case.target.folder, env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        data, _ = process.communicate(_answers(case), timeout=2 * BLOCKED_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "did not end", f"hang, {case.target.words}"
    case.code = process.returncode
    return _judge(case, data)


def serve(material: Path, folder: Path, seed: int, numbers: range, processes: bool, pipe: Connection) -> None:
    """Run cases in a separate process, and send the findings of each."""
    if not processes:
        _import_all()
    os.environ["EVIL"] = str(folder.parent / "evil")
    sys.addaudithook(hear)
    signal.signal(signal.SIGALRM, _alarm)
    sandbox = Sandbox(material, folder)
    most = _data_bytes() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # for this process and its children
    for number in numbers:
        pipe.send(number)  # fails if the parent has closed the pipe
        pipe.send(run_case(seed, number, sandbox, processes)[0])
    pipe.send(None)


def _data_bytes() -> int:
    """Return this process's data, as RLIMIT_DATA counts it: a fork of the tests' worker begins with the worker's."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData")), 0)


def _import_all() -> None:
    """Import the modules that commands import lazily: an interrupted import would leave an incomplete module.

    The command parser is built once, and a drill's run is omitted: both take longer than most cases.
    """
    for name in (
        "frog.cli",
        "frog.train.train_commands",
        "frog.train.finetune.finetune_commands",
        "sympy",
        "torch._dynamo",
        "tokenizers",
    ):
        importlib.import_module(name)
    cli = sys.modules["frog.cli"]
    cli._parser = functools.cache(cli._parser)  # type: ignore[attr-defined]
    drill.run_into = lambda *_: None


class _Hang(BaseException):
    """A case did not end."""


def _alarm(*_: Any) -> None:
    raise _Hang("did not end in time")


def run_cases(material: Path, scratch: Path, seed: int, numbers: range, processes: bool = False) -> Iterator[Finding]:
    """Run cases in a child process; replace the child if a case kills or blocks it."""
    at, part = numbers.start, 0
    while at < numbers.stop:
        part += 1
        ours, theirs = Pipe()
        child = os.fork()
        if child == 0:
            ours.close()
            place = scratch / f"seed{seed}-{at}-{part}-{processes:d}" / wrong_files.SANDBOX
            _serve_and_exit(material, place, seed, range(at, numbers.stop), processes, theirs)
        theirs.close()
        try:
            while ours.poll(2 * BLOCKED_S + 60):
                said = ours.recv()
                if said is None:
                    at = numbers.stop
                    break
                if isinstance(said, int):
                    at = said
                else:
                    yield from said
                    at += 1
            else:
                yield Finding(seed, at, processes, "the case", "did not end, and could not be interrupted", "hang")
                at += 1
        except EOFError:
            yield Finding(seed, at, processes, "the case", "killed its process", "died")
            at += 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ours.close()


def _serve_and_exit(*args: Any) -> None:
    code = 1
    try:
        serve(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
