"""Slurm's notations, as the emulator parses and formats them."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from frog.cluster.emulator import SlurmRefusal
from frog.cluster.emulator.command_options import (
    HARMLESS,
    KNOWN,
    check_patterns,
    gpus,
    memory_mb,
    note,
    read_script,
    read_words,
    srun_variables,
)
from frog.cluster.emulator.job_processes import parse_ps
from frog.cluster.emulator.notation import (
    compress_counts,
    compress_hosts,
    expand_hosts,
    fill_pattern,
    parse_array,
    parse_moment,
    parse_signal,
    parse_time_limit,
    pattern_values,
    signal_number,
    write_elapsed,
)
from frog.cluster.emulator.sbatch import _script, parse_dependency
from frog.cluster.slurm_options import SBATCH, SRUN


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-2]", ["node1", "node2"]),
        ("node[1-2,4],login", ["node1", "node2", "node4", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-100]", ["n098", "n099", "n100"]),
        ("n[08,9-10]", ["n08", "n9", "n10"]),
        ("n[1,01]", ["n1", "n01"]),
    ],
)
def test_hosts_expand_and_compress(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts
    assert compress_hosts(hosts) == text


@pytest.mark.parametrize("text", ["node[2-1]", "node[1", "a[1]b", "node[x]", "a b"])
def test_invalid_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^ ]+( [^ ]+)?$"):
        expand_hosts(text)


def test_task_counts_are_compressed() -> None:
    assert compress_counts([2, 2, 1]) == "2(x2),1"
    assert compress_counts([4]) == "4"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("0:10", 1), ("1:30", 2), ("2:00:00", 120), ("1-0", 1440), ("1-2:30", 1590), ("0", None)],
)
def test_time_limits_are_minutes_rounded_up(text: str, minutes: int | None) -> None:
    assert parse_time_limit(text) == minutes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("now", 0), ("now+5", 5), ("now+5seconds", 5), ("now+1second", 1), ("now+2minutes", 120)],
        *[("now+1minute", 60), ("now+3hours", 10_800), ("now+2days", 172_800)],
    ],
)
def test_moment_counts_from_now(text: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert parse_moment(text) == 1000 + seconds


def test_moment_may_be_a_date() -> None:
    assert time.localtime(parse_moment("2026-01-31T12:34:56"))[:6] == (2026, 1, 31, 12, 34, 56)
    for text in ("tomorrow", "now+5weeks", "2026-01-31", "now-5", "99999-01-31T12:34:56"):
        with pytest.raises(ValueError, match=r".+"):
            parse_moment(text)


def test_signal_option_is_parsed() -> None:
    found = parse_signal("B:USR1@120")
    assert (found.number, found.before_s, found.to_batch) == (signal.SIGUSR1, 120, True)
    assert (parse_signal("SIGTERM").number, parse_signal("10").before_s) == (signal.SIGTERM, 60)
    with pytest.raises(SlurmRefusal, match="does not support --signal=R:"):
        parse_signal("R:USR1@60")


def test_array_option_is_parsed() -> None:
    assert parse_array("0-3%2").tasks == (0, 1, 2, 3)
    assert (parse_array("0-3%2").at_once, parse_array("2-9:3").step) == (2, 3)
    with pytest.raises(SlurmRefusal, match="Invalid job array"):
        parse_array("1-1001")


def test_file_name_patterns_are_expanded() -> None:
    values = pattern_values(7, "train", "me", "node1", 5, 2)
    assert fill_pattern("%x-%j-%A_%3a.%%", values) == "train-7-5_002.%"
    with pytest.raises(SlurmRefusal, match="does not support %b in the name"):
        fill_pattern("%b.out", values)


def test_elapsed_time_is_formatted() -> None:
    assert [write_elapsed(seconds) for seconds in (7, 754, 3600, 90061)] == ["0:07", "12:34", "1:00:00", "1-01:01:01"]


def test_dependency_option_is_parsed() -> None:
    assert parse_dependency("afterok:1:2_3,singleton") == [("afterok", ["1", "2_3"]), ("singleton", [])]
    for text in ("afterok:1?afterany:2", "aftercorr:1", "after:1+5"):
        with pytest.raises(SlurmRefusal, match=r"does not support --dependency|dependency problem"):
            parse_dependency(text)


def test_memory_and_gpu_options_are_parsed() -> None:
    assert [memory_mb({"mem": text}, "mem") for text in ("100M", "2G", "300", "1500K")] == [100, 2048, 300, 2]
    assert memory_mb({}, "mem-per-cpu") is None
    assert (gpus({"gres": "gpu:4"}), gpus({"gpus-per-node": "2"}), gpus({})) == ((4, None), (2, 2), (0, None))
    assert (gpus({"gres": "gpu:h100:4"}), gpus({"gpus-per-node": "h100:4"})) == ((4, None), (4, 4))
    for options in ({"gres": "gpu:h100:x"}, {"gres": "shard:1"}, {"gpus-per-node": "h100:"}):
        with pytest.raises(SlurmRefusal, match="does not support --g"):
            gpus(options)


@pytest.mark.parametrize(
    ("line", "word"), [("--gres=gpu:1", "--gpus-per-node=2"), ("--gpus-per-node=2", "--gres=gpu:1")]
)
def test_gres_overrides_gpus_per_node(line: str, word: str) -> None:
    given, _ = read_words("sbatch", [word], SBATCH)
    assert gpus(read_script(f"#!/bin/sh\n#SBATCH {line}\n") | given) == (1, 2)


def test_srun_reads_options_from_variables() -> None:
    env = {"SLURM_KILL_BAD_EXIT": "1", "SLURM_LABELIO": "", "SRUN_CPUS_PER_TASK": "4", "SLURM_NTASKS": "2"}
    assert srun_variables(env) == {"kill-on-bad-exit": "1", "label": None, "cpus-per-task": "4"}
    assert [srun_variables({"SLURM_LABELIO": text}) for text in ("0", "no", "2")] == [{}, {}, {"label": "2"}]
    for name in ("SRUN_CONTAINER", "SLURM_OVERLAP", "SLURM_EXACT", "SLURM_OPEN_MODE"):
        with pytest.raises(SlurmRefusal, match=f"does not support the variable {name} of srun"):
            srun_variables({**env, name: "1"})


@pytest.mark.parametrize("name", ["CPU_BIND", "MEM_BIND", "HINT", "GPU_FREQ", "PROFILE", "PARTITION", "ACCOUNT", "QOS"])
def test_srun_accepts_variables_of_options_without_effect(name: str) -> None:
    assert srun_variables({f"SLURM_{name}": "cores"}) == {}


def test_variables_of_a_job_are_accepted_by_srun() -> None:
    given = json.loads((Path(__file__).parent / "jobs" / "recorded.json").read_text())["jobs"]
    names = re.findall(r"\b(SLURM_\w+|SRUN_\w+)=", json.dumps(given))
    assert len(set(names)) > 40
    srun_variables(dict.fromkeys(names, "1"))


def test_invalid_file_pattern_is_refused_at_submission() -> None:
    check_patterns({"output": "%x-%3j.out", "error": None, "input": "a%%"})
    for name, text in (("output", "%q.out"), ("error", r"a\%j"), ("input", "%s")):
        with pytest.raises(SlurmRefusal, match=f"^--{name}: the Slurm emulator does not support"):
            check_patterns({name: text})


@pytest.mark.parametrize(
    ("program", "words", "named"),
    [
        ("sbatch", ["--gpus-per-socket=1"], "--gpus-per-socket of sbatch"),
        ("sbatch", ["-x", "node1"], "-x of sbatch"),
        ("sbatch", ["--distribution=cyclic"], "--distribution=cyclic of sbatch"),
        ("sbatch", ["--gpu-bind=closest"], "--gpu-bind=closest of sbatch"),
        ("srun", ["--mpi=pmix", "x"], "--mpi=pmix of srun"),
        ("srun", ["--multi-prog", "x"], "--multi-prog of srun"),
        ("srun", ["--bcast", "x"], "--bcast of srun"),
    ],
)
def test_unsupported_option_is_named(program: str, words: list[str], named: str) -> None:
    with pytest.raises(SlurmRefusal, match=f"does not support {named}"):
        read_words(program, words, SBATCH if program == "sbatch" else SRUN)


def test_harmless_options_are_accepted_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--mail-type=END,FAIL", "--mail-user", "me@example.org", "--hint=nomultithread", "-N2", "-v", "job"]
    options, rest = read_words("sbatch", words, SBATCH)
    assert (options["nodes"], rest) == ("2", ["job"])
    note("sbatch", options)
    assert capsys.readouterr().err == "sbatch: no effect on the emulator: --mail-type, --mail-user, --hint\n"
    note("sbatch", {**options, "quiet": None})
    note("sbatch", {"nodes": "2"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("program", ["sbatch", "srun"])
def test_every_option_is_known_harmless_or_refused(program: str) -> None:
    table = SBATCH if program == "sbatch" else SRUN
    assert set(table) >= KNOWN[program] | HARMLESS[program]
    assert not KNOWN[program] & HARMLESS[program]


def test_gpus_of_the_whole_job_are_divided_evenly() -> None:
    assert gpus({"gpus": "8", "nodes": "2"}) == (4, None)
    assert gpus({"gpus": "a100:4"}) == (4, None)
    assert gpus({"gres": "gpu:h100:2"}) == (2, None)
    assert gpus({"gres": "gpu"}) == (1, None)
    for wrong in ({"gpus": "3", "nodes": "2"}, {"gpus": "8", "nodes": "2", "gpus-per-node": "2"}, {"gres": "shard:2"}):
        with pytest.raises(SlurmRefusal, match="does not support"):
            gpus(wrong)


def test_last_of_two_contradicting_options_applies() -> None:
    options, rest = read_words("sbatch", ["--requeue", "-N1", "--no-requeue", "-N", "2", "job", "-x"], SBATCH)
    assert (options, rest) == ({"no-requeue": None, "nodes": "2"}, ["job", "-x"])


def test_emulator_directives_end_at_the_first_command() -> None:
    script = "#!/bin/bash\n#SBATCH -N 2 # two\n# SBATCH -N 3\n\n#SBATCH --time=5\ntrue\n#SBATCH -N 4\n"
    assert read_script(script) == {"nodes": "2", "time": "5"}


def test_marks_are_found_in_ps_output() -> None:
    """Parse output of macOS, which has no /proc: its ps prints the environment after the command."""
    lines = [
        "  12 /bin/bash A=1 FROG_EMULATOR_MARK=frog1/7.0/ B=2",
        "   9 grep x",
        " 13 py FROG_EMULATOR_MARK=frog1/7.0/1/",
    ]
    text = "\n".join(lines)
    assert parse_ps(text) == [(12, "frog1/7.0/"), (13, "frog1/7.0/1/")]


@pytest.mark.parametrize(
    "text", ["n[1-9999999999]", "n[1-99999999]", "n[1-9999],m[1-9999]", "n[" + "9" * 5000 + "]", "n[²]"]
)
def test_huge_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expand_hosts(text)


@pytest.mark.parametrize("width", ["9999999999", "9" * 5000])
def test_padding_of_file_name_patterns_is_limited(width: str) -> None:
    assert fill_pattern(f"%{width}j", {"j": "7"}) == "0000000007"


@pytest.mark.parametrize("text", ["9" * 5000, "²", "4294967296:00:00"])
def test_out_of_range_numbers_are_refused(text: str) -> None:
    with pytest.raises(SlurmRefusal):
        parse_time_limit(text)
    assert signal_number(text) is None


def test_job_file_on_standard_input_accepts_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#!/bin/sh\n# caf\xe9\n")))
    assert _script({}, [])[0] == "#!/bin/sh\n# caf\udce9\n"
