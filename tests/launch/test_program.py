"""The program that a command names, and torchrun commands in its place."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from frog.core.errors import UsageError
from frog.launch import program
from frog.launch.program import RankProgram, merge_torchrun_options, parse_program, parse_torchrun


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text("import torch\nimport frog\nfrog.record(step=1)\n")
    Path("page.py").write_text("import sys\nfrom frog.train.main import main\n")
    Path("text").write_text("print(1)\n")
    for name, text in (("run.sh", "#!/bin/sh\n"), ("headless.sh", "echo\n"), ("tool", "#!/bin/sh\n")):
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    Path("plain.sh").write_text("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("words", "kind", "target", "name"),
    [
        ("train run.toml", "frog", "-m frog.train run.toml", "train"),
        ("-m frog.train run.toml", "frog", "-m frog.train run.toml", "frog.train"),
        ("page.py run.toml", "frog", "page.py run.toml", "page"),
        ("my.py --lr 1", "script", "my.py --lr 1", "my"),
        ("text", "script", "text", "text"),
        ("-m pkg.train --lr 1", "module", "-m pkg.train --lr 1", "pkg.train"),
        ("python3 -u my.py", "command", "--no-python python3 -u my.py", "my"),
        ("python3 -m pkg.train", "command", "--no-python python3 -m pkg.train", "pkg.train"),
        ("./run.sh a", "command", "--no-python ./run.sh a", "run"),
        ("sh plain.sh", "command", "--no-python sh plain.sh", "plain"),
        ("./tool", "command", "--no-python ./tool", "tool"),
        ("echo a/b", "command", "--no-python echo a/b", "echo"),
    ],
)
def test_command_is_recognized_with_the_name_of_its_run(words: str, kind: str, target: str, name: str) -> None:
    found = parse_program(words.split())
    assert (found.kind, " ".join(found.target), found.name) == (kind, target, name)
    assert found.words == tuple(words.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "nothing to run"),
        ("-m", "names no module"),
        ("missing.py", "neither a script"),
        ("plain.sh", "is not executable"),
        ("headless.sh", "has no #! line"),
        ("accelerate launch my.py", "starts ranks itself"),
        ("/usr/bin/mpirun -n 2 my.py", "starts ranks itself"),
    ],
)
def test_command_that_cannot_run_on_ranks_is_refused(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_program(words.split())
    assert error.value.hint


@pytest.mark.parametrize(
    ("words", "program", "num_ranks"),
    [
        ("torchrun --standalone --nproc_per_node=2 my.py --lr 1", "my.py --lr 1", 2),
        ("torchrun --nproc-per-node 3 -m pkg.train -m", "-m pkg.train -m", 3),
        ("/opt/bin/torchrun --nnodes 1:1 --no-python ./run.sh", "./run.sh", 1),
        ("python3 -m torch.distributed.run --nproc_per_node 2 my.py", "my.py", 2),
        ("-m torch.distributed.launch --use_env --nproc_per_node 2 my.py", "my.py", 2),
    ],
)
def test_torchrun_command_names_a_program_and_the_ranks(words: str, program: str, num_ranks: int) -> None:
    found = parse_torchrun(words.split())
    assert found is not None
    assert (" ".join(found.program), found.num_ranks) == (program, num_ranks)
    assert parse_program(found.program).kind != "frog"


@pytest.mark.parametrize("words", ["my.py", "python3 my.py torchrun", "-m pkg", "train run.toml", ""])
def test_other_command_is_not_torchruns(words: str) -> None:
    assert parse_torchrun(words.split()) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("torchrun", "names no program"),
        ("torchrun nothere.py", "no such script"),
        ("torchrun --nproc 2x my.py", "ambiguous|expected a number"),
        ("torchrun --nproc-per-node 0 my.py", "expected a number"),
        ("torchrun --nnodes 1:4 my.py", "expected one number"),
        ("torchrun --numa-binding node my.py", "--numa-binding: not supported"),
        ("torchrun --run-path my.py", "--run-path: not supported"),
        ("torchrun --frogs 4 my.py", "torchrun: "),
        ("torchrun --max-restarts many my.py", "invalid int"),
    ],
)
def test_torchrun_option_that_cannot_be_honoured_is_refused(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_torchrun(words.split())
    assert error.value.hint


def merged(words: str, **given: object) -> argparse.Namespace:
    args = argparse.Namespace(**{"nproc": None, "nodes": None, "restarts": None, **given})
    command = parse_torchrun(words.split())
    assert command is not None
    merge_torchrun_options(command, args)
    return args


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("torchrun my.py --x 1", ("my.py", "--x", "1")),
        ("torchrun my", ("HERE/my",)),  # Python would take it for a module's name
        ("torchrun my.txt", ("HERE/my.txt",)),
        ("torchrun a.out", ("HERE/a.out",)),
        ("torchrun --no-python my", ("my",)),
        ("torchrun --no-python missing -y", ("missing", "-y")),
        ("torchrun -m my.mod -y", ("-m", "my.mod", "-y")),
    ],
)
def test_script_of_torchrun_is_a_file_a_module_or_a_program(
    words: str, target: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my.py", "my", "my.txt", "a.out"):
        (tmp_path / name).touch()
    args = program._torchrun_parser().parse_args(words.split()[1:])
    assert program._torchrun_program(args) == tuple(word.replace("HERE", str(tmp_path)) for word in target)
    with pytest.raises(UsageError, match="no such script"):
        program._torchrun_program(program._torchrun_parser().parse_args(["missing.py"]))


def test_size_and_restarts_come_from_torchruns_options(capsys: pytest.CaptureFixture[str]) -> None:
    args = merged("torchrun --nproc-per-node 4 --max-restarts 2 --rdzv-id 7 --log-dir x my.py")
    assert (args.nproc, args.restarts) == (4, 2)
    assert "--rdzv-id, --log-dir" in capsys.readouterr().err
    assert merged("torchrun --nnodes 2 --nproc-per-node 2 my.py", nodes="2x2").nodes == "2x2"
    assert merged("torchrun my.py", nodes="2x4").nproc is None


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("torchrun --nproc-per-node 4 my.py", {"nproc": 2}),
        ("torchrun --max-restarts 4 my.py", {"restarts": 2}),
        ("torchrun --nnodes 2 --nproc-per-node 2 my.py", {}),
        ("torchrun --nnodes 2 --nproc-per-node 2 my.py", {"nodes": "4x2"}),
    ],
)
def test_contradicting_options_are_refused(words: str, given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"disagree|this machine is one node"):
        merged(words, **given)


def test_name_of_a_run_is_a_valid_folder_name() -> None:
    Path("a b;c").mkdir()
    Path("a b;c/..strange é!.py").write_text("")
    assert parse_program(["a b;c/..strange é!.py"]).name == "strange_é"
    assert isinstance(parse_program(["echo"]), RankProgram)
