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


@pytest.mark.parametrize(
    ("program_name", "resumes", "joins"),
    [
        ("train", True, True),
        ("finetune", True, False),
        ("prove", False, False),
        ("profile", False, False),
        ("explain", False, False),
        ("collectives", False, False),
        ("my.py", True, True),
    ],
)
def test_programs_that_resume_or_can_be_joined(program_name: str, resumes: bool, joins: bool) -> None:
    words = [program_name, "run.toml"]
    assert (program.can_resume(words), program.can_be_joined(words)) == (resumes, joins)


@pytest.mark.parametrize(
    ("text", "gpus", "number"),
    [
        ("gpu", 3, 3),
        ("auto", 3, 3),
        ("auto", 0, 5),
        ("cpu", 3, 5),
        ("7", 3, 7),
        ("1", 0, 1),
        ("gpu", 0, "this machine has none"),
        ("0", 3, "expected a number, gpu, cpu or auto"),
        ("-1", 3, "expected a number, gpu, cpu or auto"),
        ("many", 3, "expected a number, gpu, cpu or auto"),
    ],
)
def test_number_of_ranks_may_be_that_of_gpus_or_cores(
    text: str, gpus: int, number: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "visible_gpus", lambda: list(range(gpus)))
    monkeypatch.setattr(program, "usable_cores", lambda: 5.5)
    command = ["torchrun", f"--nproc-per-node={text}", "my.py"]
    if isinstance(number, str):
        with pytest.raises(UsageError) as caught:
            parse_torchrun(command)
        assert caught.value.what == f"torchrun --nproc-per-node {text}: {number}"
    else:
        found = parse_torchrun(command)
        assert found is not None
        assert found.num_ranks == number


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("3:3", 3), ("2:3", None), ("0", None), ("3:", None), ("x", None)]
)
def test_number_of_nodes_is_fixed(text: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(UsageError, match=f"--nnodes {text}: expected one number"):
            program._num_nodes(text)
    else:
        assert program._num_nodes(text) == number


def test_no_effect_of_torchruns_options_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    merged("torchrun --standalone --rdzv-backend c10d -r 3 --tee 1 --log_dir x my.py")
    said = "no effect under frog run: torchrun --rdzv-backend, --log-dir, --standalone, --redirects, --tee\n"
    assert capsys.readouterr().err == said
    merged("torchrun my.py")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        ("torchrun --nproc-per-node 4 my.py", {"nproc": 2}, "--nproc 2 and torchrun --nproc-per-node 4 disagree"),
        (
            "torchrun --max-restarts 4 my.py",
            {"restarts": 0},
            "--restarts 0 and torchrun --max-restarts 4 disagree",
        ),
        (
            "torchrun --nnodes 2 --nproc-per-node 2 my.py",
            {"nodes": "2"},
            "--nodes 2 and torchrun --nnodes 2 --nproc-per-node 2 disagree",
        ),
        ("torchrun --nnodes 2 --nproc-per-node 3 my.py --x", {}, "torchrun --nnodes 2: this machine is one node"),
    ],
)
def test_contradiction_names_both_options(words: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged(words, **given)
    assert caught.value.what == said
    if not given:
        assert caught.value.hint == "frog run --nodes 2x3 -- my.py --x ... simulates them"


@pytest.mark.parametrize(
    ("words", "given", "nproc"),
    [
        ("torchrun --nnodes 2 my.py", {"nodes": "2"}, None),
        ("torchrun --nnodes 2 my.py", {"nodes": "2x1"}, None),
        ("torchrun --nproc-per-node 3 my.py", {"nproc": 3, "restarts": 1}, 3),
        ("torchrun --max-restarts 2 my.py", {"restarts": 2}, 1),
    ],
)
def test_equal_options_agree(words: str, given: dict[str, object], nproc: int | None) -> None:
    assert merged(words, **given).nproc == nproc


@pytest.mark.parametrize(
    ("stem", "name"), [("a" * 81, "a" * 80), ("._-x-_.", "x"), ("é ü", "é_ü"), ("...", "program"), ("a.b-c", "a.b-c")]
)
def test_name_of_a_folder_is_short_and_plain(stem: str, name: str) -> None:
    assert program._name(stem) == name
