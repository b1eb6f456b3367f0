"""Input of `frog slurm explain`: command-line options, versions, ignore comments, encodings, arbitrary bytes."""

from __future__ import annotations

import io
import json
import random
import sys
import time
from pathlib import Path

import pytest
from test_explain_traps import GOOD, changed

from frog.cli import main
from frog.cluster.jobfile.explain import explain, explain_file
from frog.cluster.jobfile.jobfile_commands import format_findings
from frog.cluster.jobfile.launchers import _unabbreviated
from frog.cluster.jobfile.line_meanings import explain_lines
from frog.cluster.jobfile.shell_script import parse
from frog.cluster.jobfile.shell_words import open_quote
from frog.core.errors import UsageError

HERE = Path(__file__).parent
NO_CPUS = changed(GOOD, (('--cpus-per-task="$SLURM_CPUS_PER_TASK" ', ""),))


def codes(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Return the findings of the command, with their severities."""
    code = main(["slurm", "explain", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert code == any(item["severity"] != "advice" for item in found)
    return {item["code"]: item["severity"] for item in found}


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("good").write_text(GOOD)
    return Path("good")


def test_command_line_options_override_the_file(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert codes(capsys, "good") == {}
    assert codes(capsys, "good", "--gpus-per-node", "2") == {"ranks-beyond-gpus": "will fail"}
    assert codes(capsys, "good", "--ntasks-per-node=4") == {"ranks-doubled": "may hang or waste"}
    assert codes(capsys, "good", "-N", "3", "-J", "name", "--exclusive") == {}
    assert codes(capsys, "good", "-t", "48") == {"time-in-minutes": "may hang or waste"}


def test_findings_depend_on_the_slurm_version(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good.write_text(NO_CPUS)
    assert codes(capsys, "good") == {"cpus-not-passed-on": "advice"}
    assert codes(capsys, "good", "--slurm-version", "22.05") == {"cpus-not-passed-on": "may hang or waste"}
    assert codes(capsys, "good", "--slurm-version", "20.11.9") == {}
    assert codes(capsys, "good", "--slurm-version", "23.11") == {}
    assert main(["slurm", "explain", "good", "--slurm-version", "new"]) == 2


def test_output_folder_trap_depends_on_the_slurm_version(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good.write_text(GOOD.replace("tiny-%j.out", "log/%j/tiny.out"))
    assert codes(capsys, "good") == {"no-output-folder": "advice"}
    assert codes(capsys, "good", "--slurm-version", "22.05") == {"no-output-folder": "may hang or waste"}
    assert codes(capsys, "good", "--slurm-version", "23.02") == {}


def test_ignore_comment_disables_a_code(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))"
    bad = GOOD.replace("--gpus-per-node=4 ", "--gpus-per-node=2 ").replace(port, "MASTER_PORT=29500")
    good.write_text(bad)
    assert set(codes(capsys, "good")) == {"ranks-beyond-gpus", "port-fixed"}
    good.write_text(bad.replace("=29500", "=29500  # frog: ignore port-fixed"))
    assert set(codes(capsys, "good")) == {"ranks-beyond-gpus"}
    good.write_text(bad.replace("set -e", "# frog: ignore port-fixed, ranks-beyond-gpus\nset -e"))
    assert set(codes(capsys, "good")) == set()


def test_explain_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert main(["slurm", "explain", "-", "--traps"]) == 0
    assert capsys.readouterr().out == "-: no traps\n"


@pytest.mark.parametrize(
    ("encoding", "found"),
    [("utf-8-sig", {"byte-order-mark"}), ("utf-16", {"byte-order-mark"}), ("latin-1", set()), ("utf-8", set())],
)
def test_encodings_are_decoded_or_reported(
    encoding: str, found: set[str], good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good.write_bytes(GOOD.replace("job-name=tiny", "job-name=t\u00efny").encode(encoding))
    assert set(codes(capsys, "good")) == found


def test_unreadable_job_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    for name, message in (
        ("binary", "not a text"),
        ("large", "expected at most"),
        (".", "expected a file"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=message):
            explain_file(tmp_path / name)


def test_partially_understood_file_is_not_called_free_of_traps(tmp_path: Path) -> None:
    lost = explain("#!/bin/bash\n#SBATCH -t 5\nif then ) fi\nhostname\n", Path("job"), None, (tmp_path,))
    assert format_findings(lost)[-1] == "job: no traps in the lines that Frog understood, 1 piece of advice"
    assert [(item.code, item.line) for item in lost.findings] == [("not-understood", 3)]


def test_nested_job_is_checked(tmp_path: Path) -> None:
    text = "#!/bin/bash\nX=`sbatch <<EOF\n#!/bin/bash\n#SBATCH -t 48\nsrun a --x \\$SLURM_JOB_ID\nEOF`\n"
    (finding,) = explain(text, Path("job"), None, (tmp_path,)).findings
    assert (finding.code, finding.line) == ("time-in-minutes", 4)


def test_partially_understood_nested_job_is_not_called_free_of_traps(tmp_path: Path) -> None:
    lost = "nodes =( x )\nif [ x ]; then\n"
    found = explain(f"#!/bin/bash\nsbatch <<'EOF'\n#!/bin/bash\n#SBATCH -t 48:00:00\n{lost}EOF\n", tmp_path / "x.sh")
    assert found.partial
    assert [(item.code, item.line) for item in found.findings] == [("blank-behind-equals", 5), ("quote-not-closed", 6)]


def test_template_causes_one_finding(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -N {{ nodes }} -t {{ time }}\n#SBATCH --gpus-per-node=<GPUS>\n"
    text += "{% if x %}\nsrun {{ command }}\n{% endif %}\n"
    (finding,) = explain(text, Path("job"), None, (tmp_path,)).findings
    assert (finding.code, finding.line) == ("template", 2)
    assert "lines 2, 3, 4, 5, 6" in finding.what


@pytest.mark.parametrize(
    "text",
    [
        "#   sbatch --gres=gpu:8 this.sbatch <run file>\n",
        "# Usage: sbatch --nodes=4 this.sbatch\n#sbatch --nodes=4 this.sbatch\n",
        'if [ $# -lt 1 ]; then echo "usage: $0 <run file>"; exit 1; fi\n',
        ': "${1:?call it as: sbatch this.sbatch <run_file>}"\n',
        'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"\n',
        "python a.py \\\n  --quick \\\n",
    ],
)
def test_usage_text_causes_no_finding(text: str, tmp_path: Path) -> None:
    begins = "#!/bin/bash\n#SBATCH --time=1:00:00\n"
    assert explain(begins + text, Path("job"), None, (tmp_path,)).findings == ()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("f() { srun a; }\ng() { f; }\ng\n", [1]),
        ("exec srun a\nsrun b\n", [1]),
        ("exit 0\nsrun b\n", []),
        ("if a; then exit; fi\nsrun b\n", [2]),
        ("f() { exit; }\nf\nsrun b\n", []),
        ("read -r a <<< x\nsrun b\n", [2]),
        ("cat <<A\nsrun a\nA\nsrun b\n", [4]),
        ("f() { f; }\nf\nsrun b\n", [3]),
    ],
)
def test_explain_follows_the_order_of_execution(text: str, lines: list[int]) -> None:
    assert [command.line for command in parse(text).commands if "srun" in command.text] == lines


def test_a_correction_shows_tabs_as_blanks_and_control_characters_as_codes(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=2\n--ntasks\t4\x01\ntrain\n")
    assert "  write: #SBATCH --ntasks 4\\x01" in format_findings(explain_file(path))


PIECES = [
    *(b"#!/bin/bash\n", b"#SBATCH --nodes=2\n", b"srun bash -c '", b"$(", b"${", b"((", b"<<EOF\n", b"EOF\n"),
    *(b"\xff", b"f() { f; f; }\nf\n", b"while true; do", b"{{ x }}", b"`", b'"', b"'", b"\\\n", b"A+=("),
]  # fmt: skip


def any_bytes(chance: random.Random) -> bytes:
    """Return a real file, truncated and mixed with itself and with harmful pieces."""
    sources = [path.read_bytes() for path in sorted((HERE / "right").iterdir())]
    data = bytearray(chance.choice(sources))
    for _ in range(chance.randint(1, 12)):
        place = chance.randrange(len(data) + 1)
        what = chance.randrange(4)
        if what == 0:
            data[place:place] = chance.choice(PIECES) * chance.choice([1, 1, 3, 400])
        elif what == 1:
            del data[place : place + chance.randrange(60)]
        elif what == 2:
            data[place:place] = bytes(chance.choices(range(256), k=chance.randrange(20)))
        else:
            other = chance.choice(sources)
            data[place:place] = other[chance.randrange(len(other)) :]
    return bytes(data)


def explained(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    began = time.process_time()
    try:
        explanation = explain_file(path)
    except UsageError:
        return
    said = [
        *format_findings(explanation),
        *(words for lines in explain_lines(explanation.job).values() for words in lines),
    ]
    assert time.process_time() - began < 20
    assert sum(map(len, format_findings(explanation))) < 1 << 17
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for line in format_findings(explanation) for char in line)
    assert said


@pytest.mark.parametrize("seed", range(8))
def test_explain_survives_mutated_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for _ in range(15):
        explained(any_bytes(chance), tmp_path / "job")


@pytest.mark.slow
def test_explain_survives_many_mutated_files(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        explained(any_bytes(chance), tmp_path / "job")


NESTED = {
    "brackets": "(" * 20_000,
    "quotes": "'" * 100_001,
    "substitutions": "$(" * 20_000,
    "braces": "{ " * 20_000,
    "branches": "if a; then " * 3000,
    "doubled": "A=$A$A\n" * 3000,
    "functions": "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(50)) + "f0\n",
    "variables": "A0=x\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(60)) + "srun $A60 torchrun --nnodes $A60\n",
    "documents": "cat <<A\n" * 3000,
    "directive": "#SBATCH " + "-" * 100_000,
    "arithmetic": "X=" + "$((1+" * 3000,
}


@pytest.mark.parametrize("name", NESTED)
def test_explain_bounds_nesting(name: str, tmp_path: Path) -> None:
    explained(NESTED[name].encode(), tmp_path / "job")


MOST_CALLS, LONG = 10_000_000, "y" * 300_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "srun python t.py --data /x/$SLURM_JOB_ID\ncp x /tmp/a\n" * 2500,
        f"A='{LONG}'\n" + "cp x $A\n" * 500 + "srun python t.py " + "x$A " * 20_000,
    ],
    ids=["many steps", "a long variable in many words"],
)
def test_explain_bounds_the_work_for_large_files(text: str, tmp_path: Path) -> None:
    """The number of function calls bounds the work."""
    path, calls = tmp_path / "job", 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        assert calls < MOST_CALLS

    path.write_text(f"#!/bin/bash\n#SBATCH --nodes=2\n{text}")
    sys.setprofile(count)
    try:
        explain_file(path)
    finally:
        sys.setprofile(None)


QUOTES = '#!/bin/bash\n#SBATCH --time=10\nbash -c "\n  ./x\n"\necho "one"\necho "two\necho "three"\necho "four"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (QUOTES, 7),
        (QUOTES.replace('two\n', 'two"\n').replace('four"', "four"), 9),
        (QUOTES.replace('two\n', 'two"\n').replace("./x\n\"", "./x\n"), 3),
        (QUOTES.replace('"', "'"), 7),
        (QUOTES.replace('"two', '"$(echo "two")'), 7),
    ],
)  # fmt: skip
def test_open_quote_is_reported_where_it_opens(text: str, line: int) -> None:
    assert open_quote(text) == line


def test_text_without_open_quote_has_none() -> None:
    assert open_quote(QUOTES.replace("two\n", 'two"\n')) is None


@pytest.mark.parametrize(
    ("written", "name"),
    [("nnode", "nnodes"), ("nproc", "nproc-per-node"), ("master-a", "master-addr"), ("rdzv", "rdzv"), ("n", "n")],
)
def test_option_of_torchrun_may_be_abbreviated(written: str, name: str) -> None:
    assert _unabbreviated(written) == name


@pytest.mark.parametrize(("quote", "codes"), [('"', []), ("'", ["head-of-its-own"])])
def test_command_in_double_quotes_runs_in_the_batch_script(quote: str, codes: list[str], tmp_path: Path) -> None:
    launch = "torchrun --nnode=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv-endpoint=$(hostname):29500 a.py"
    header = "#!/bin/bash\n#SBATCH --nodes=2 --exclusive\n#SBATCH --time=10\n"
    found = explain(f"{header}srun bash -c {quote}\n  {launch}\n{quote}\n", tmp_path / "x.sh")
    assert [item.code for item in found.findings] == codes
