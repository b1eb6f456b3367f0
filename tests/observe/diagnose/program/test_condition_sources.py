"""What the condition of a branch or a loop depends on, by the assignments of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program import assigned_values, code_blocks
from frog.observe.diagnose.program.assigned_values import ProgramFile, importers
from frog.observe.diagnose.program.code_blocks import blocks_around
from frog.observe.diagnose.program.condition_sources import source_words

MARK = "  # here"
MAY = ", which may differ between ranks"


def words_of(folder: Path, program: str, **modules: str) -> str:
    """Return the words on the innermost block around the marked line. modules: other files, by name."""
    script = folder / "train.py"
    script.write_text(program)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    for cache in (code_blocks.source_of, ProgramFile.of, importers):
        cache.cache_clear()
    line = next(number for number, text in enumerate(program.splitlines(), 1) if text.endswith(MARK))
    return source_words(blocks_around(CodeLine(file=str(script), line=line))[-1])


@pytest.mark.parametrize(
    ("before", "test", "words"),
    [
        (
            "found = cache.exists()",
            "found",
            "`found` is `cache.exists()` of line 2; the test in line 3 depends on files",
        ),
        ("began = time.monotonic()", "now() - began > limit", "the test in line 3 depends on a clock"),
        ("skip, other = random.random() < 0.1, 0", "skip", "of line 2; the test in line 3 depends on random numbers"),
        ("free, total = torch.cuda.mem_get_info()", "free > need", "the test in line 3 depends on free memory"),
        ("mode = os.environ['MODE']", "mode == 'a'", "the test in line 3 depends on the environment"),
        ("bad = not torch.isfinite(loss)", "not bad", "the test in line 3 depends on numbers of its own data"),
        ("writes = dist.get_rank() == 0", "writes", "the test in line 3 depends on the rank"),
        ("both = exists(x) and time() > end", "both", "the test in line 3 depends on files and a clock"),
        ("cached = exists(paths[rank])", "cached", "the test in line 3 depends on files"),
    ],
)
def test_source_of_a_value_is_followed_to_what_may_differ(tmp_path: Path, before: str, test: str, words: str) -> None:
    program = f"def main(need, limit):\n    {before}\n    if {test}:\n        dist.barrier(){MARK}\n"
    found = words_of(tmp_path, program)
    assert found.startswith("; ")
    assert found.endswith(words if words.endswith("the rank") else f"{words}{MAY}")


@pytest.mark.parametrize(
    "test", ["step % 10 == 0", "rank == 0", "settings.saves", "unknown(x)", "total > 3"], ids=lambda test: test
)
def test_test_that_is_equal_on_all_ranks_or_names_the_rank_has_no_source(tmp_path: Path, test: str) -> None:
    program = f"total = 4\ndef main(step):\n    if {test}:\n        dist.barrier(){MARK}\n"
    assert words_of(tmp_path, program) == ""


def test_flag_names_the_test_under_which_it_is_set_and_its_source(tmp_path: Path) -> None:
    program = (
        "stop = False\nfor step in range(9):\n    if time.time() > end:\n        stop = True\n"
        f"    if stop:\n        save(){MARK}\n"
    )
    assert words_of(tmp_path, program) == (
        "; `stop` is set in line 4, under `if time.time() > end:` in line 3; the test in line 5 depends on a clock"
        + MAY
    )


def test_functions_and_parameters_of_the_file_are_followed(tmp_path: Path) -> None:
    """From `ready` to the argument of the call, to what that function returns, to an attribute of its object."""
    program = f"""\
class Cache:
    def __init__(self, path):
        self.hit = path.is_file()
    def found(self):
        return self.hit
def load(name, *, ready):
    if ready:
        dist.broadcast(name){MARK}
load("a", ready=Cache(path).found())
"""
    assert words_of(tmp_path, program) == (
        "; `ready` is `Cache(path).found()` of line 9; the test in line 7 depends on files" + MAY
    )


def test_constants_that_a_function_returns_depend_on_its_tests(tmp_path: Path) -> None:
    program = f"""\
def is_due(self):
    if time.monotonic() < self.next:
        return False
    return True
if saver.is_due():
    dist.barrier(){MARK}
"""
    assert words_of(tmp_path, program) == "; the test in line 5 depends on a clock" + MAY


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("while time.time() < end:", "; the loop in line 1 depends on a clock" + MAY),
        ("for name in sorted(os.listdir(folder)):", "; the loop in line 1 depends on files" + MAY),
        ("for batch in batches[rank]:", ""),
        ("for batch in batches:", ""),
    ],
)
def test_loop_names_what_its_rounds_depend_on(tmp_path: Path, head: str, words: str) -> None:
    assert words_of(tmp_path, f"{head}\n    dist.barrier(){MARK}\n") == words


def test_source_that_nests_deeply_or_refers_to_itself_ends(tmp_path: Path) -> None:
    terms = " + ".join(["x"] * 980)
    assert words_of(tmp_path, f"x = y\ny = x\ny = {terms}\nif x + 1:\n    dist.barrier(){MARK}\n") == ""


@pytest.mark.parametrize(
    ("imports", "test", "module", "words"),
    [
        ("from flags import stops", "stops(x)", "def stops(x):\n    return x.exists()\n", "files (flags.py:2)"),
        ("import flags", "flags.stops(x)", "def stops(x):\n    return time.time() > x\n", "a clock (flags.py:2)"),
        ("from . import flags", "flags.stops(x)", "def stops(x):\n    return x.is_dir()\n", "files (flags.py:2)"),
        ("import flags as f", "f.LIMIT", "LIMIT = random.random()\n", "random numbers (flags.py:1)"),
        (
            "from flags import Control\nown = Control(rank)",
            "own.skips(x)",
            "class Control:\n    def skips(self, x):\n        if x.norm().item() > 3:\n            return True\n"
            "class Other:\n    def skips(self, x):\n        return x.exists()\n",
            "numbers of its own data (flags.py:3)",
        ),
    ],
    ids=["function", "of module", "of package", "constant", "method"],
)
def test_source_in_another_file_is_followed_and_named(
    tmp_path: Path, imports: str, test: str, module: str, words: str
) -> None:
    program = f"{imports}\ndef main(x):\n    if {test}:\n        dist.barrier(){MARK}\n"
    assert words_of(tmp_path, program, flags=module).endswith(f" depends on {words}{MAY}")


def test_parameter_of_a_class_is_followed_to_the_file_that_makes_its_object(tmp_path: Path) -> None:
    """From the items of a container to the test before they are stored, to the argument in the main program."""
    cache = f"""\
class Cache:
    def __init__(self, room):
        self.room, self.kept = room, {{}}
    def keep(self, name, size):
        if size > self.room:
            return
        self.kept[name] = size < self.room
    def check(self, name):
        if self.kept:
            dist.barrier(){MARK}
"""
    main = "from train import Cache\ncache = Cache(mem_get_info()[0])\n"
    assert words_of(tmp_path, cache, main=main) == "; the test in line 9 depends on free memory (main.py:2)" + MAY


@pytest.mark.parametrize(
    ("before", "test", "words"),
    [
        ("dist.all_reduce(flag)", "flag.item() > 0", ""),
        ("dist.broadcast(flag, src=0)", "flag", ""),
        ("dist.reduce(flag, dst=0)", "flag.item() > 0", "numbers of its own data"),
        ("dist.all_reduce(other)", "flag.item() > 0", "numbers of its own data"),
    ],
)
def test_value_that_a_collective_made_equal_may_not_differ(tmp_path: Path, before: str, test: str, words: str) -> None:
    program = (
        f"def main(loss):\n    flag = torch.isnan(loss)\n    {before}\n    if {test}:\n        dist.barrier(){MARK}\n"
    )
    found = words_of(tmp_path, program)
    assert ("depends on" in found) == bool(words)
    assert words in found


def test_program_outside_of_a_folder_with_modules_reads_no_library(tmp_path: Path) -> None:
    """An installed package of the name is not the program's."""
    library = tmp_path / "lib" / "python3.11" / "site-packages"
    library.mkdir(parents=True)
    program = f"import flags\nif flags.stops():\n    dist.barrier(){MARK}\n"
    assert words_of(library, program, flags="def stops():\n    return random.random() > 1\n") == ""


def test_import_without_a_module_in_the_root_of_a_disk_is_no_file() -> None:
    assert assigned_values._module_file("/train.py", "", 0) == assigned_values._module_file("/train.py", "", 1) == ""
