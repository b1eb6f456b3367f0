"""Run `frog check` on correct public programs, 20 steps each, and list every finding.

    python benchmarks/false_alarms.py CLONES [--only WORD ...] [--keep FOLDER] [--judge] [--packages FOLDER] [--losses]

false_alarms.toml names the programs: repository, commit, command, and our adapter, which is what makes a program small
enough for two CPU cores and independent of downloads. CLONES has a clone of each repository, named OWNER_NAME. Each
program is written out of its clone into a folder of its own. A certain or likely finding is a false alarm, unless the
file names the bug that the public program has (`right`), with its line.

--packages adds a folder of installed packages that the programs need beyond Frog's. --losses runs each program that is
marked with `losses` twice more, with and without the check, and compares the losses of all ranks, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FROG = [sys.executable, "-c", "import sys; from frog.cli import main; sys.exit(main())"]
LIMIT_S = 900
SURE = ("certain", "likely", "possible")
LARGE = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".mp4", ".ipynb")
HEAD = f"{'program':34s} {'repository@commit':56s} {'launch':22s} steps  certain likely possible rules  minutes"
LOSSES = """
import os, runpy, sys
import torch

backward = torch.Tensor.backward


def recorded(loss, *words, **more):
    if loss.numel() == 1:
        with open(os.environ["LOSSES"] + os.environ["RANK"], "a") as file:
            print(loss.detach().double().item().hex(), file=file)
    return backward(loss, *words, **more)


torch.Tensor.backward = recorded
module = sys.argv[1] == "-m"
sys.argv = sys.argv[1 + module:]
sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(sys.argv[0])))
(runpy.run_module if module else runpy.run_path)(sys.argv[0], run_name="__main__", **({"alter_sys": True} if module else {}))
"""  # noqa: E501
"""Runs a program and writes each loss of which the gradients are computed."""


@dataclass(frozen=True)
class Program:
    """A public program, and what makes it small."""

    name: str
    repository: str
    commit: str
    command: str
    """What follows `--`; {data} is the folder of data, {root} that of the repository."""
    folder: str = ""
    """Where it is run, in the repository."""
    paths: tuple[str, ...] = ()
    """Folders that are written out besides `folder`."""
    options: str = ""
    """Options of `frog check`, such as --simulate-gpus."""
    nproc: int = 2
    environment: tuple[tuple[str, str], ...] = ()
    edits: tuple[tuple[str, str, str], ...] = ()
    """Edits of the adapter: a file in `folder`, what is replaced, by what."""
    files: tuple[tuple[str, str], ...] = ()
    """Files that the adapter adds: a path in `folder`, and the text."""
    links: tuple[tuple[str, str], ...] = ()
    """Links that the adapter adds: a path in `folder`, and what it names in the folder of data."""
    losses: bool = False
    right: tuple[tuple[str, str], ...] = ()
    """Rules that the program breaks indeed: the rule, and the proof with its line."""

    @property
    def launch(self) -> str:
        return f"{self.nproc} ranks{', simulated GPUs' if '--simulate-gpus' in self.options else ''}"


def programs() -> list[Program]:
    """Read the programs."""
    found = []
    for each in tomllib.loads((HERE / "false_alarms.toml").read_text())["programs"]:
        each["edits"] = tuple((edit["file"], edit["replace"], edit["by"]) for edit in each.get("edits", []))
        for key in ("files", "links", "environment", "right"):
            each[key] = tuple(each.get(key, {}).items())
        found.append(Program(**{**each, "paths": tuple(each.get("paths", []))}))
    return found


# ---- one program -----------------------------------------------------------------------------------------------------


def write_out(program: Program, clones: Path, data: Path, target: Path) -> Path:
    """Write a program out of its clone and adapt it; return the folder in which it is run.

    Objects that the clone lacks, such as pictures, are left out.
    """
    shutil.rmtree(target, ignore_errors=True)
    clone = clones / program.repository.replace("/", "_")
    git = ["git", "-C", str(clone)]
    paths = [path for path in (program.folder, *program.paths) if path] if program.folder else list(program.paths)
    words = [*git, "ls-tree", "-r", "-z", "--format=%(objecttype) %(objectname) %(path)", program.commit, *paths]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    blobs = [line.split(" ", 2)[1:] for line in listed.split("\0") if line.startswith("blob ")]
    with subprocess.Popen([*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for name, path in blobs:
            if path.endswith(LARGE):
                continue
            reader.stdin.write(f"{name}\n".encode())
            reader.stdin.flush()
            head = reader.stdout.readline().split()
            if head[-1] == b"missing":
                continue
            content = reader.stdout.read(int(head[2]) + 1)[:-1]
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)
        reader.stdin.close()
    folder = target / program.folder
    for name, old, new in program.edits:
        text = (folder / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{program.name}: {old!r} is {text.count(old)} times in {name}, not once")
        (folder / name).write_text(text.replace(old, new.replace("{data}", str(data))))
    for name, text in program.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("{data}", str(data)))
    for name, source in program.links:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(data / source)
    return folder


def run(program: Program, how: str, root: Path, folder: Path, data: Path, more: dict[str, str]) -> tuple[int, str]:
    """Run a program with `frog HOW`; return the exit code, 124 if it ran out of time, and the output."""
    command = program.command.replace("{data}", str(data)).replace("{root}", str(root))
    environment = {
        key: value.replace("{root}", str(root)).replace("{data}", str(data)) for key, value in program.environment
    }
    path = [environment.pop("PYTHONPATH", ""), more.pop("PYTHONPATH", "")]
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **own, **environment, **more, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    options = ["--nproc", str(program.nproc), "--threads", "1", "--deadline", "180", *shlex.split(program.options)]
    words = [*FROG, how, *options, *(["--json"] if how == "check" else []), "--", *shlex.split(command)]
    try:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        return 124, str(error)


def check(program: Program, clones: Path, data: Path, target: Path, packages: str) -> None:
    """Run `frog check` on a program, and keep what it answers in `answers.json`, next to its output."""
    folder = write_out(program, clones, data, target)
    start = time.monotonic()
    code, text = run(program, "check", target, folder, data, {"PYTHONPATH": packages})
    minutes = (time.monotonic() - start) / 60
    (target / "output.txt").write_text(text)
    found = text.rfind('{\n  "run": ')
    answers = json.JSONDecoder().raw_decode(text[found:])[0] if found >= 0 else {"rules": []}
    answers |= {"exit": code, "minutes": minutes, "left": left_behind(target)}
    answers["run"] = str(folder / answers["run"]) if "run" in answers else ""
    (target / "answers.json").write_text(json.dumps(answers, indent=1))


def compare_losses(program: Program, clones: Path, data: Path, target: Path, packages: str) -> None:
    """Run a program with and without the check, and keep in `losses.json` whether all losses are equal."""
    found = {}
    for how in ("run", "check"):
        other = target.with_name(f"{target.name}-{how}")
        folder = write_out(program, clones, data, other)
        (other / "recorded_losses.py").write_text(LOSSES)
        wrapped = Program(**{**program.__dict__, "command": f"{other / 'recorded_losses.py'} {program.command}"})
        _, text = run(wrapped, how, other, folder, data, {"PYTHONPATH": packages, "LOSSES": f"{other}/losses_"})
        (other / "output.txt").write_text(text)
        found[how] = {path.name: path.read_text().split() for path in sorted(other.glob("losses_*"))}
    counts = {name: len(values) for name, values in found["run"].items()}
    (target / "losses.json").write_text(json.dumps({"equal": found["run"] == found["check"], "losses": counts}))


def left_behind(target: Path) -> list[str]:
    """Return the commands of processes that still run in a program's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve().is_relative_to(target.resolve()):
                found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
        except OSError:
            continue
    return found


# ---- all of them -----------------------------------------------------------------------------------------------------


def judged(target: Path, again: bool) -> dict[str, Any]:
    """Return what is known of a program; with `again`, the rules of now are applied to its records."""
    from frog.observe.check.answers import answers_as_json, read_answers
    from frog.observe.check.rank_records import read_records

    answers: dict[str, Any] = json.loads((target / "answers.json").read_text())
    if answers["run"]:
        if again:
            answers["rules"] = answers_as_json(read_answers(Path(answers["run"])).answers)
            (target / "answers.json").write_text(json.dumps(answers, indent=1))
        records = read_records(Path(answers["run"]))
        answers["steps"] = min((len(record.steps) for record in records.values()), default=0)
        answers["stopped"] = sorted({record.stopped for record in records.values() if record.stopped})
    losses = target / "losses.json"
    answers["losses"] = json.loads(losses.read_text()) if losses.exists() else None
    return answers


def table(chosen: list[Program], keep: Path, again: bool) -> Iterator[str]:
    """Yield a line for each program, then every finding."""
    yield HEAD
    totals, alarms, details, equal = dict.fromkeys(SURE, 0), 0, [], []
    ran: list[Program] = []
    for program in chosen:
        target = keep / program.name
        where = f"{program.repository}@{program.commit[:10]}"
        if not (target / "answers.json").exists():
            yield f"{program.name:34s} {where:56s} not run"
            continue
        answers = judged(target, again)
        broken = [rule for rule in answers["rules"] if rule["outcome"] == "broken"]
        counts = {sure: sum(rule["sure"] == sure for rule in broken) for sure in SURE}
        looked = sum(rule["outcome"] != "not checked" for rule in answers["rules"])
        notes = [f"exit code {answers['exit']}"] if answers["exit"] not in (0, 1) else []
        notes += [f"recording stopped: {text}" for text in answers.get("stopped", [])]
        notes += [f"left behind: {text}" for text in answers["left"]]
        if answers["losses"]:
            number = sum(answers["losses"]["losses"].values())
            equal.append(answers["losses"]["equal"])
            notes.append(f"{number} losses {'equal' if equal[-1] else 'DIFFERENT'} without the check")
        numbers = "".join(f"{counts[sure]:8d}" for sure in SURE)
        steps, minutes = answers.get("steps", 0), answers["minutes"]
        if steps:
            ran.append(program)
        yield (
            f"{program.name:34s} {where:56s} {program.launch:22s} {steps:5d} {numbers} {looked:5d} {minutes:8.1f}"
            f"{'  ' if notes else ''}{'; '.join(notes)}"
        )
        right = dict(program.right)
        for rule in broken:
            totals[rule["sure"]] += 1
            is_alarm = rule["sure"] != "possible" and rule["rule"] not in right
            alarms += is_alarm
            word = f"; right: {right[rule['rule']]}" if rule["rule"] in right else "; FALSE ALARM" if is_alarm else ""
            line = str(rule["line"] or "-").replace(f"{target.resolve()}/", "")
            details.append(f"{program.name}: {rule['sure']}, {rule['rule']}, {line}: {rule['finding']}{word}")
    yield ""
    yield from details
    numbers = ", ".join(f"{number} {sure}" for sure, number in totals.items())
    repositories = len({program.repository for program in ran})
    yield f"\n{len(ran)} programs of {repositories} repositories; findings: {numbers}; false alarms: {alarms}"
    if equal:
        yield f"losses with and without the check: equal in {sum(equal)} of {len(equal)} programs"


def main() -> None:
    """Run the programs, or judge what was kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="programs with a word in their name")
    parser.add_argument("--skip", nargs="*", default=[], metavar="NAME", help="programs to leave out")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the programs and their records here")
    parser.add_argument("--judge", action="store_true", help="run nothing, apply the rules of now to what --keep has")
    parser.add_argument("--packages", default="", metavar="FOLDER", help="packages that the programs need")
    parser.add_argument("--losses", action="store_true", help="also compare losses with and without the check")
    parser.add_argument("--missing", action="store_true", help="run only what --keep has no answer of yet")
    args = parser.parse_args()
    every = [each for each in programs() if each.name not in args.skip]
    ordered = [each for word in args.only or [""] for each in every if word in each.name]
    chosen = list(dict.fromkeys(ordered))
    with tempfile.TemporaryDirectory() as temporary:
        keep = (args.keep or Path(temporary)).resolve()
        data = keep / "data"
        if chosen and not args.judge and not data.exists():
            subprocess.run([sys.executable, str(HERE / "false_alarms_adapters.py"), str(data)], check=True)
        for program in [] if args.judge else chosen:
            if not (args.missing and (keep / program.name / "answers.json").exists()):
                check(program, args.clones.resolve(), data, keep / program.name, args.packages)
                print(*list(table([program], keep, again=False))[1:], sep="\n", flush=True)
            if args.losses and program.losses:
                compare_losses(program, args.clones.resolve(), data, keep / program.name, args.packages)
        for line in table(chosen, keep, again=args.judge):
            print(line)


if __name__ == "__main__":
    main()
