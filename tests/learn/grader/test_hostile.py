"""A hostile file never passes: every check ends with a verdict and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from harness import wait_until

from frog.core.landlock import landlock_version
from frog.launch.resource_limits import SHARED_MEMORY, remove_shared_memory
from frog.learn.grader.client import Grader
from frog.learn.grader.exercise import Exercise
from frog.learn.grader.grade import Grade, Rejected
from frog.learn.grader.verdict import Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems confine learners' processes less")

FILES = {
    "manifest.toml": """
        title = "a sum"
        able = "add"
        minutes = 1
        files = ["sum.py"]
        functions = ["reduce"]
        hints = ["a", "b", "c"]
        [[misconceptions]]
        id = "wrong-sum"
        belief = "it is the sum"
        question = "Is it?"
    """,
    "sum.py": """
        def reduce(x):
            raise NotImplementedError("fill in reduce")
    """,
    "reference/sum.py": """
        import torch.distributed as dist

        def reduce(x):
            dist.all_reduce(x)  # the secret
    """,
    "ranks.py": """
        import torch
        import torch.distributed as dist

        SIZES, SPLITS = (2,), {"even": [1, 2]}

        class Box:
            def add(self):
                return None

        def work(learner, case):
            x = torch.full((3,), float(case["values"][dist.get_rank()]))
            result = learner.reduce(x)
            return x if result is None else result
    """,
    "check.py": """
        import random
        import torch

        def check(grade):
            values = random.Random(grade.seed).sample(range(1, 1000), 2)
            world = grade.world(2, {"values": values}, seconds=1.0)
            expected = torch.full((3,), float(sum(values)))
            for found in world.values:
                grade.compare(found, expected, "the sum", id="wrong-sum")
    """,
}


OF_A_SCRIPT = {
    "manifest.toml": FILES["manifest.toml"].replace("sum.py", "sum.sh").replace('["reduce"]', "[]"),
    "sum.sh": "",
    "reference/sum.sh": "echo $(($1 + $2)) # the secret",
    "check.py": """
        def check(grade):
            ended = grade.program(["bash", "sum.sh", "3", str(grade.seed)], seconds=1.0, wall_s=8.0)
            grade.records(ended, "result.json", dict[str, int])
            if ended.out.strip() != str(3 + grade.seed):
                grade.reject("wrong-sum", f"It said {ended.out[:100]!r} and ended with {ended.code}.")
    """,
}


def write_exercise(folder: Path, files: dict[str, str]) -> Exercise:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return Exercise(folder)


OF_THE_SHELL = {
    "GLOO_SOCKET_IFNAME": "no-such-interface",
    "NCCL_DEBUG": "INFO",
    "TP_SOCKET_IFNAME": "no-such-interface",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "OMP_NUM_THREADS": "64",
    "UCX_TLS": "all",
    "PYTHONPATH": ".",
    "PYTHONOPTIMIZE": "2",
    "PYTHONHASHSEED": "7",
}
"""Variables that a learner's shell may have set for other work."""


LEFT = f"frog-left-{uuid4().hex}"
"""Name of shared memory that a program leaves; the programs' texts have `frog-left`."""


class Place:
    """A grader with its own temporary folder, to detect left-over processes, files and shared memory."""

    def __init__(self, labs: Path, temporary: Path) -> None:
        self.exercise = write_exercise(labs / "lab9" / "01_sum", FILES)
        self.script = write_exercise(labs / "lab9" / "02_script", OF_A_SCRIPT)
        self.temporary = temporary
        self._shared: set[str] = set()
        self.grader = Grader()

    def check(self, source: str, seconds: float = 1.0) -> Verdict:
        """`seconds`: the exercise's limit on a rank's CPU time."""
        check = self.exercise.folder / "check.py"
        check.write_text(textwrap.dedent(FILES["check.py"]).replace("seconds=1.0", f"seconds={seconds}"))
        source = textwrap.dedent(source).replace("frog-left", LEFT)
        verdict = self.grader.check(self.exercise, {"sum.py": source.encode()})
        self._shared |= set(re.findall(r"'(torch_\w+)'", verdict.output))
        return verdict

    def check_script(self, source: str) -> Verdict:
        return self.grader.check(self.script, {"sum.sh": source.replace("frog-left", LEFT).encode()})

    def left(self) -> list[str]:
        """List processes and files left by finished checks, except the reserve process and torch's shared files."""
        files = [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        if hides():
            files += [name for name in os.listdir("/dev/shm") if LEFT in name or name in self._shared]
        mine = (os.getpid(), self.grader._process.pid)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                marked = process.environ().get("TMPDIR", "").startswith(str(self.temporary))
                if marked and process.pid not in mine and process.status() != psutil.STATUS_ZOMBIE:
                    files.append(f"{process.pid} {' '.join(process.cmdline())}")
        return files


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        temporary, learner = tmp_path_factory.mktemp("t"), tmp_path_factory.mktemp("learner")
        patch.setenv("TMPDIR", str(temporary))
        for name, value in OF_THE_SHELL.items():
            patch.setenv(name, value)
        for name in ("random", "copy", "torch", "check", "ranks"):
            (learner / f"{name}.py").write_text("raise SystemExit('imported from the current folder')\n")
        patch.chdir(learner)
        place = Place(tmp_path_factory.mktemp("labs"), temporary)
        place.grader.wait()
        patch.chdir("/")
        with place.grader:
            yield place


def snippets(name: str) -> list[Any]:
    """Return the bodies of hostile/NAME.txt, each with its acceptable verdict ids. All but the first are slow."""
    text = (Path(__file__).parent / "hostile" / f"{name}.txt").read_text()
    blocks = re.findall(r"^=== (.+?): (.+)\n((?:(?!===).*\n?)*)", text, re.MULTILINE)
    return [
        pytest.param(body.strip("\n"), tuple(ids.split()), id=title, marks=[pytest.mark.slow] if place else [])
        for place, (title, ids, body) in enumerate(blocks)
    ]


def hides() -> bool:
    """Return True if this system lets a process hide files from itself."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-Urm", "true"], capture_output=True).returncode == 0


def in_reduce(body: str) -> str:
    """Return a file whose function `reduce` has this body."""
    return "import torch\nimport torch.distributed as dist\ndef reduce(x):\n" + textwrap.indent(
        textwrap.dedent(body).strip("\n"), "    "
    )


FORGED = """
    import sys
    def lines():
        for cell in dist.all_reduce.__closure__ or ():
            for part in getattr(cell.cell_contents, "args", ()) + (cell.cell_contents,):
                judge = getattr(getattr(part, "__self__", part), "_judge", None)
                if judge is not None:
                    yield judge
    line = next(lines())
"""
"""Obtains the connection to the judge from the layer over torch.distributed."""


def refused(verdict: Verdict, ids: tuple[str, ...]) -> None:
    """Check that the verdict is a rejection with one of these ids and a readable text."""
    assert verdict.status == "rejected", verdict
    assert verdict.misconception in ids, verdict
    assert verdict.observed
    assert "Traceback" not in verdict.observed


@pytest.fixture(autouse=True)
def _nothing_is_left(place: Place) -> Iterator[None]:
    yield
    wait_until(lambda: place.left() == [], "the end of all processes")


@pytest.mark.slow
def test_reference_of_the_hostile_exercise_passes(place: Place) -> None:
    assert place.check(FILES["reference/sum.py"]).status == "passed"
    assert place.check(FILES["sum.py"]).status == "unsolved"


@pytest.mark.parametrize(("body", "ids"), snippets("ends") + snippets("processes"))
def test_code_that_hangs_or_exits_gets_a_verdict(body: str, ids: tuple[str, ...], place: Place) -> None:
    refused(place.check(in_reduce(body)), ids)


@pytest.mark.parametrize(
    "body", ["while True:\n    pass", "import os\nos._exit(0)", "raise SystemExit", "print('passed')"]
)
def test_code_that_hangs_or_exits_on_import_gets_a_verdict(body: str, place: Place) -> None:
    refused(place.check(body), ("never-ends", "exited", "missing-function"))


@pytest.mark.parametrize(("body", "ids"), snippets("looks"))
def test_course_files_cannot_be_read(body: str, ids: tuple[str, ...], place: Place) -> None:
    """The code tries to read the reference, catches any exception, and returns the right result."""
    if ids == ("passed",) and not hides():
        pytest.skip("this system does not let a process hide a folder")
    secret = f"SECRET = {str(place.exercise.folder / 'reference' / 'sum.py')!r}"
    lines = [secret, "try:", textwrap.indent(body, "    "), "except BaseException as e:", "    print(repr(e))"]
    verdict = place.check(in_reduce("\n".join([*lines, "dist.all_reduce(x)"])))
    assert "the secret" not in verdict.output
    if ids != ("passed",):  # the hook does not see files opened from C++, but they are hidden
        refused(verdict, ids)


@pytest.fixture(scope="module")
def machine() -> Iterator[socket.socket]:
    """A server of this machine, outside the check, on all its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.skipif(landlock_version() < 3 or not hides(), reason="this system cannot confine a process")
@pytest.mark.parametrize(("body", "ids"), snippets("escapes"))
def test_code_reaches_nothing_outside_its_folder(
    body: str, ids: tuple[str, ...], place: Place, machine: socket.socket, tmp_path: Path
) -> None:
    """The code tries, catches any exception, and returns the right result; what only the kernel sees may pass."""
    (tmp_path / "victim").write_text("untouched")
    names = f"OUTSIDE, HOST, PORT = {str(tmp_path)!r}, '127.0.0.1', {machine.getsockname()[1]}"
    lines = [names, "try:", textwrap.indent(body, "    "), "    print('DONE')", "except BaseException as e:"]
    verdict = place.check(in_reduce("\n".join([*lines, "    print(repr(e))", "dist.all_reduce(x)"])))
    assert "DONE" not in verdict.output, verdict
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert (tmp_path / "victim").read_text() == "untouched"
    with pytest.raises(BlockingIOError):  # no rank has connected
        machine.accept()
    if ids != ("passed",):
        refused(verdict, ids)


@pytest.mark.parametrize(("body", "ids"), snippets("tricks"))
def test_patching_the_process_never_passes(body: str, ids: tuple[str, ...], place: Place) -> None:
    refused(place.check(in_reduce(body)), ids)


@pytest.mark.parametrize(("body", "ids"), snippets("frames"))
def test_stack_frames_do_not_reveal_the_graders_inputs(body: str, ids: tuple[str, ...], place: Place) -> None:
    """The code walks from a frame back to the one that contains every rank's input."""
    walk = """
        while f is not None and "case" not in f.f_locals:
            f = f.f_back
        x.fill_(sum(f.f_locals["case"]["values"]))
    """
    refused(place.check(in_reduce(body + textwrap.dedent(walk))), ids)


@pytest.mark.parametrize(("body", "ids"), snippets("forgeries"))
def test_forged_messages_never_pass(body: str, ids: tuple[str, ...], place: Place) -> None:
    refused(place.check(in_reduce(textwrap.dedent(FORGED) + body)), ids)


@pytest.mark.parametrize(
    "body",
    [
        "import random, numpy\nrandom.seed(0)\ntorch.manual_seed(0)\nnumpy.random.seed(0)\nx.fill_(7)",
        "import os\nfor f in os.listdir('.'):\n    os.remove(f)\nx += 1",
        "import sys\nfor name in list(sys.modules):\n    del sys.modules[name]\nx += 1",
        "import atexit\natexit.register(print, 'passed')\nx += 1",
        "class A:\n    def __del__(self):\n        x.fill_(7)\nA()",
        "import sys\nsys.stdout = None\nx += 1",
        "dist.all_reduce(x, async_op=True)",
        "dist.destroy_process_group()",
    ],
)
def test_side_effects_do_not_make_a_wrong_result_pass(body: str, place: Place) -> None:
    refused(place.check(in_reduce(body)), ("wrong-sum", "raised", "closed-output", "patched"))


@pytest.mark.parametrize(
    "source",
    [
        b"\x00",
        b"\xff\xfe",
        b"# coding: utf-7\nx = 1",
        b"# coding: no-such\nx = 1",
        b"# caf\xe9\ndef reduce(x): pass",
        b"(" * 100_000,
        b"-" * 1_000_000 + b"1",
        b"x = " + b"[" * 5_000 + b"]" * 5_000,
        b"x" + b".y" * 100_000,
        b"x = " + b"1" * 100_000,
        b"if 1:\n" * 90 + b" pass",
        b"def reduce(x:\n",
        b"",
    ],
    ids=lambda source: source[:12].decode(errors="replace"),
)
def test_unreadable_python_file_is_rejected_with_its_place(source: bytes, place: Place) -> None:
    refused(place.grader.check(place.exercise, {"sum.py": source}), ("not-python", "not-readable", "missing-function"))


@pytest.mark.parametrize("text", ["x = ", "x = 1" + "0" * 5_000, "x = " + "[" * 100_000, "x = 1\nx = 2"])
def test_unreadable_answers_file_is_rejected(text: str, place: Place, tmp_path: Path) -> None:
    (tmp_path / "answers.toml").write_text(text)
    with pytest.raises(Rejected) as caught:
        Grade(place.exercise, tmp_path, 0, None, tmp_path).answers()
    assert caught.value.failure.id == "not-readable"


@pytest.mark.parametrize(("body", "ids"), snippets("scripts"))
def test_hostile_script_gets_a_verdict(body: str, ids: tuple[str, ...], place: Place) -> None:
    secret = place.script.folder / "reference" / "sum.sh"
    if "SECRET" in body and not hides():
        pytest.skip("this system does not let a process hide a folder")
    verdict = place.check_script(f"SECRET={secret}\n{body}\n")
    assert "the secret" not in verdict.output
    if "broken" in ids and verdict.status == "broken":  # where the kernel does not protect the judge from it
        assert (verdict.status, verdict.observed) == ("broken", "The grader's own process ended.")
        assert place.check_script(OF_A_SCRIPT["reference/sum.sh"]).status == "passed"  # and removes the files
    else:
        refused(verdict, ids)


def test_correct_script_passes(place: Place) -> None:
    assert place.check_script(OF_A_SCRIPT["reference/sum.sh"]).status == "passed"


def test_shell_settings_do_not_reach_the_ranks(place: Place) -> None:
    """The shell sets OF_THE_SHELL, and the current directory contains modules named like the standard library's."""
    body = "import os, random, copy\nprint(sorted(os.environ.items()), __debug__)\ndist.all_reduce(x)"
    verdict = place.check(in_reduce(body))
    assert verdict.status == "passed", verdict
    reached = [(name, value) for name, value in OF_THE_SHELL.items() if str((name, value)) in verdict.output]
    assert reached == []
    assert "] True" in verdict.output


def test_byte_order_mark_is_accepted_as_in_python(place: Place) -> None:
    source = textwrap.dedent(FILES["reference/sum.py"])
    latin = "# coding: latin-1\n# caf\xe9\n".encode("latin-1")
    for data in (source.encode("utf-8-sig"), source.replace("\n", "\r\n").encode("utf-8-sig"), latin + source.encode()):
        verdict = place.grader.check(place.exercise, {"sum.py": data})
        assert verdict.status == "passed", verdict


def test_missing_module_error_names_the_checked_files(place: Place) -> None:
    verdict = place.check("import helpers\n" + in_reduce("dist.all_reduce(x)"))
    refused(verdict, ("raised",))
    assert "The check runs sum.py and no other file" in (verdict.observed or ""), verdict.observed


@pytest.mark.parametrize("package", ["torch.distributed._tensor", "torch.distributed.checkpoint", "transformers"])
def test_package_may_load_libraries_during_import(package: str, place: Place) -> None:
    pytest.importorskip(package)
    verdict = place.check(f"import {package}\n" + in_reduce("dist.all_reduce(x)"), seconds=20.0)
    assert verdict.status == "passed", verdict


@pytest.mark.parametrize(
    "value",
    ["torch.eye(3).to_sparse()", "torch.ones(3, device='meta')", "Mine([7.0, 7.0, 7.0])", "Loud()", "{chr(0xD800): 1}"],
)
def test_values_that_are_not_plain_are_rejected_without_a_traceback(value: str, place: Place) -> None:
    """The exercise returns a value made by the learner's code, whose methods would run when it is sent."""
    source = f"""
        import sys, torch
        class Mine(list):
            pass
        class Loud(torch.Tensor):
            @classmethod
            def __torch_function__(cls, *_):
                raise SystemExit(0)
        def reduce(x):
            return {value}
    """
    verdict = place.check(source)
    refused(verdict, ("raised", "wrong-sum"))
    assert "Traceback" not in verdict.output


@pytest.mark.parametrize("text", ["1 / 0", "sys.exit(0)", "chr(0xD800)"])
def test_error_without_a_text_is_reported(text: str, place: Place) -> None:
    source = f"""
        import sys
        class NoText(Exception):
            errno = property(lambda self: 1 / 0)
            def __str__(self):
                return {text}
        def reduce(x):
            raise NoText
    """
    verdict = place.check(source)
    refused(verdict, ("raised",))
    assert "NoText at sum.py" in (verdict.observed or ""), verdict.observed
    assert "Traceback" not in verdict.output


def test_shared_memory_of_an_ended_process_is_removed() -> None:
    """Processes share /dev/shm on some systems, where their files would stay."""

    left = SHARED_MEMORY / f"torch_{2**30}_1_0"
    left.write_text("x")
    remove_shared_memory([2**30 - 1])
    assert left.exists()
    remove_shared_memory([2**30])
    assert not left.exists()


def test_legitimate_tools_are_allowed(place: Place) -> None:
    """Legitimate tools of exercises: logging, warnings, tracebacks, files, threads."""
    body = """
        import collections, dataclasses, io, logging, tempfile, threading, traceback, warnings
        logging.basicConfig(level=logging.INFO, force=True)
        logging.info("x is %s", x)
        warnings.warn("a warning", stacklevel=2)
        collections.namedtuple("Pair", "a b")
        dataclasses.make_dataclass("Pair", ["a", "b"])
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
        with tempfile.TemporaryDirectory() as folder, open(folder + "/a", "w") as file:
            file.write("a")
        path = f"{dist.get_rank()}.pt"  # all ranks share the folder
        torch.save({"x": x}, path)
        torch.load(path, mmap=True)
        thread = threading.Thread(target=dist.all_reduce, args=(x,))
        thread.start()
        thread.join()
        torch.optim.AdamW([torch.nn.Parameter(x.clone())])
        print("x", x)
    """
    verdict = place.check(in_reduce(body))
    assert verdict.status == "passed", verdict
