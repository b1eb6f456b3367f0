"""Parsing of directives and command lines, compared with the observed behaviour of sbatch and srun of Slurm 22.05."""

from __future__ import annotations

import pytest

from frog.cluster.slurm_options import SBATCH, SRUN, read_directives, read_options


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("#SBATCH--nodes=2", {"nodes": "2"}),
        ("#SBATCH-N2", {"nodes": "2"}),
        ('#SBATCH"--nodes=2"', {"nodes": "2"}),
        ("#SBATCH#", {}),
        ("#SBATCH -HJ zz", {"hold": None, "job-name": "zz"}),
        ("#SBATCH -HQN 2", {"hold": None, "quiet": None, "nodes": "2"}),
        ("#SBATCH -kN2", {"no-kill": "N2"}),
        ("#SBATCH --job-name=a#b --nodes=2", {"job-name": "a"}),
        ('#SBATCH --job-name="x#y" # it\'s', {"job-name": "x#y"}),
        ("#SBATCH --comment=\"it's a 'b'\"", {"comment": "it's a 'b'"}),
        ("#SBATCH --comment='say \"x\"'", {"comment": 'say "x"'}),
        ('#SBATCH --comment="a"b"c d"', {"comment": "abc d"}),
        (r'#SBATCH --comment="a\"b"', {"comment": 'a"b'}),
        (r"#SBATCH --comment=a\#b", {"comment": "a#b"}),
        ("#SBATCH --job-name=a\\", {"job-name": "a"}),
    ],
)
def test_accepted_directive_is_parsed(line: str, values: dict[str, str | None]) -> None:
    (found,) = read_directives([line])
    assert {item.name: item.value for item in found.asked} == values
    assert not found.problem
    assert not any(item.problem for item in found.asked)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("#SBATCHES are many", "'ES' is not an option"),
        ("#SBATCH:x", "':x' is not an option"),
        (r"#SBATCH --comment=a\ b", "'b' is not an option"),
        ('#SBATCH -J "b', "a quote is never closed"),
        ('#SBATCH --job-name ""', "has no value"),
        ("#SBATCH -HYN 2", "no such option"),
        ("#SBATCH -H=2", "takes no value"),
        ("#SBATCH -=2", "no such option"),
    ],
)
def test_refused_directive_is_reported(line: str, problem: str) -> None:
    (found,) = read_directives([line])
    assert problem in (found.problem, *(item.problem for item in found.asked))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("-ln2 hostname -x", {"label": None, "ntasks": "2"}),
        ("-lK1 hostname", {"label": None, "kill-on-bad-exit": "1"}),
        ("-lK hostname", {"label": None, "kill-on-bad-exit": None}),
        ("-ulN 2 hostname", {"unbuffered": None, "label": None, "nodes": "2"}),
    ],
)
def test_combined_short_options_are_parsed(words: str, values: dict[str, str | None]) -> None:
    asked, used = read_options([(word, 1) for word in words.split()], SRUN)
    assert {item.name: item.value for item in asked} == values
    assert words.split()[used] == "hostname"


def test_bcast_exclude_is_an_option_of_srun_only() -> None:
    assert "bcast-exclude" in SRUN
    assert "bcast-exclude" not in SBATCH
