"""What the condition of a branch or a loop depends on, by the assignments of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program import code_blocks
from frog.observe.diagnose.program.code_blocks import blocks_around
from frog.observe.diagnose.program.condition_sources import _File, source_words

MARK = "  # here"
MAY = ", which may differ between ranks"


def words_of(folder: Path, program: str) -> str:
    """Return the words on the innermost block around the marked line."""
    script = folder / "train.py"
    script.write_text(program)
    code_blocks.source_of.cache_clear()
    _File.of.cache_clear()
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
    program = program.replace("load(name, *, ready)", "load(name, ready)")
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
