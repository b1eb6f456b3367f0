"""Output of `frog slurm explain`: every line with its effect and the origin of its values."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from test_explain_traps import GOOD, changed

from frog.cli import main
from frog.cluster.jobfile.explain import explain
from frog.cluster.jobfile.job_file import read_job_file
from frog.cluster.jobfile.line_meanings import explain_lines, summary
from frog.cluster.jobfile.shell_script import parse
from frog.cluster.slurm_options import SBATCH, SRUN, read_directives, time_limit_s, write_time

EXAMPLE = Path(__file__).parents[3] / "config" / "slurm_example.sbatch"


def said(line: int, text: str = GOOD) -> str:
    return " | ".join(explain_lines(read_job_file(text, Path("job.sbatch")))[line])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (1, "once, on the first node"),
        (3, "--nodes=2: number of nodes"),
        (5, "--gpus-per-node=4: GPUs per node"),
        (7, "time limit, after which Slurm kills the job: 30 min"),
        (8, "USR1 to this script, 120 s before, or up to 60 s earlier"),
        (11, "%j is the job id"),
        (12, "end at the first command that fails"),
        (13, "on USR1, this script runs: scancel"),
        (14, "scontrol expands the list of hosts, head takes the first; for the tasks too"),
        (15, "SLURM_JOB_ID is the job id"),
        (17, "2 tasks, 1 on each of 2 nodes in the background"),
        (17, "when one task fails, end the others too"),
        (17, "in single quotes: each task reads its own variables"),
        (18, "torchrun: starts this node's ranks"),
        (19, "--nnodes = 2: number of nodes that join the rendezvous (SLURM_NNODES is 2, by --nodes in line 3)"),
        (21, "SLURM_NODEID is this node's number in the job, from 0: its NODE_RANK, each task's own"),
        (22, "MASTER_ADDR from line 14"),
        (25, "train.py run.toml --continue: every rank runs this"),
        (28, "requeues this job"),
    ],
)
def test_explain_describes_each_line(line: int, words: str) -> None:
    assert words in said(line)


def test_explain_computes_values() -> None:
    text = changed(GOOD, (("OMP_NUM_THREADS=8", "OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 4))"),))
    assert "OMP_NUM_THREADS = 8" in said(16, text)
    job = read_job_file("#!/bin/bash\n#SBATCH -N 3\nA=${B:-7}\nC=$A$SLURM_NNODES\nD=$D\n", Path("job"))
    assert [job.resolve(text) for text in ('"$C"', "${X:-$A}", "$D", "$(date)", "\\$A")] == [
        "73",
        "7",
        None,
        None,
        None,
    ]


def test_value_in_double_quotes_is_the_first_nodes() -> None:
    text = '#!/bin/bash\n#SBATCH -N 2\nsrun bash -c "torchrun --node-rank=$SLURM_NODEID train.py"\n'
    assert "its NODE_RANK, here the first node's for all" in said(3, text)
    assert "its NODE_RANK, each task's own" in said(3, text.replace("$", "\\$"))


def test_value_assigned_by_batch_script_is_the_first_nodes() -> None:
    text = "#!/bin/bash\n#SBATCH -N 2\nNODE_RANK=$SLURM_NODEID\n"
    assert "its NODE_RANK, here the first node's for all" in said(3, text)
    task = "#!/bin/bash\n#SBATCH -N 2\nsrun bash -c 'export NODE_RANK=$SLURM_NODEID; torchrun train.py'\n"
    assert "its NODE_RANK, each task's own" in said(3, task)
    assert "its NODE_RANK, here the first node's for all" in said(3, task.replace("'", '"'))


def test_explain_summarizes_the_job() -> None:
    assert summary(read_job_file(GOOD, Path("job"))) == [
        "asks for: 2 nodes; 4 GPUs per node, 8 in total; 32 CPUs per node; for 30 min 0 s",
        "starts: 8 ranks = 2 nodes x 4",
    ]


def test_explain_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good, noted, bad = (tmp_path / name for name in ("good", "noted", "bad"))
    good.write_text(GOOD)
    noted.write_text(GOOD.replace("#SBATCH --open-mode=append\n", ""))
    bad.write_text(GOOD.replace("#SBATCH --nodes", "# SBATCH --nodes"))
    assert main(["slurm", "explain", "good"]) == 0
    assert capsys.readouterr().out.endswith("good: no traps\n")
    assert main(["slurm", "explain", "noted"]) == 0
    assert capsys.readouterr().out.endswith("noted: no traps, 1 piece of advice\n")
    assert main(["slurm", "explain", "bad", "--traps"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "bad:3: may hang or waste [not-a-directive] a space after '#' turns this line into a comment\n  why:   Slurm"
    )
    assert "  write: #SBATCH --nodes=2\n" in out
    assert main(["slurm", "explain", "none"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_explain_prints_every_line_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "explain", str(EXAMPLE)]) == 0
    page = capsys.readouterr().out
    for number, line in enumerate(EXAMPLE.read_text().splitlines(), 1):
        assert f"{number:>3}  {line}".rstrip().lstrip() in page


LONG = "".join(f"srun --foo{number} python train.py $UNSET{number}\n" for number in range(900))


@pytest.mark.slow
def test_explain_truncates_output_of_huge_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output counts omitted findings and never omits the most severe: a trap in the last line must be shown."""
    monkeypatch.chdir(tmp_path)
    Path("long").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2\n{LONG}wait\nsrun --ntasks=99 hostname\n# done\n#SBATCH --mem=1\n"
    )
    for options in ([], ["--traps"], ["--json"]):
        assert main(["slurm", "explain", "long", *options]) == 1
        out = capsys.readouterr().out
        assert len(out) < 1 << 16
        assert "after-a-command" in out
        if "--json" in options:
            assert json.loads(out)["left_out"] > 1000
        else:
            assert ("lines are not shown; findings" in out) == (not options)
            assert re.search(r"long: \d+ traps?, \d+ pieces of advice; \d+ of these are not shown", out)


def test_explain_accepts_damaged_files() -> None:
    """Truncated files and files with missing characters do not make explain fail."""
    text, chance = EXAMPLE.read_text() + GOOD, random.Random(1)
    for _ in range(60):
        start, end = sorted(chance.choices(range(len(text)), k=2))
        piece = "".join(char for char in text[start:end] if chance.random() > 0.02)
        explain_lines(explain(piece, Path("job.sbatch")).job)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("2:30:00", 9000), ("1-12", 129600), ("1-12:30", 131400), ("1-00:00:05", 86405)],
)
def test_time_limits_are_parsed_as_by_slurm(text: str, seconds: int) -> None:
    assert time_limit_s(text) == seconds
    assert time_limit_s(write_time(seconds)) == seconds


def test_unlimited_and_invalid_times() -> None:
    assert time_limit_s("UNLIMITED") is None
    with pytest.raises(ValueError, match="soon"):
        time_limit_s("soon")


def test_directives_are_parsed_as_by_slurm() -> None:
    text = '#!/bin/bash\n#SBATCH -N2 --job-name="a b" -J c # -t 5\n#SBATCH --gpus-per-n=4\n\necho\n#SBATCH --mem=1\n'
    first, second, third = read_directives(text.splitlines())
    assert [(item.name, item.value) for item in first.asked] == [("nodes", "2"), ("job-name", "a b"), ("job-name", "c")]
    assert [(item.name, item.value) for item in second.asked] == [("gpus-per-node", "4")]
    assert (first.read, third.read) == (True, False)


def test_short_options_are_unique() -> None:
    for table in (SBATCH, SRUN):
        letters = [option.short for option in table.values() if option.short]
        assert len(letters) == len(set(letters))


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ('a \'b c\' "d $(e "f")"; g', [["a", "'b c'", '"d $(e "f")"'], ["g"]]),
        ("if a; then b && c; fi", [["a"], ["b"], ["c"]]),
        ("[[ a == b && c ]] || d", [["[[", "[[ a == b && c ]]"], ["d"]]),
        ("a > b 2>&1 <<< c d", [["a", "d"]]),
        ("a <<END\nb; c\nEND\nd", [["a"], ["d"]]),
        ("a # b; c\n d\\\n e", [["a"], ["d", "e"]]),
        ("f() { a; }; f", [["f"], ["a"]]),
    ],
)
def test_shell_is_split_as_by_bash(text: str, commands: list[list[str]]) -> None:
    assert [[word.raw for word in command.words] for command in parse(text).commands] == commands
