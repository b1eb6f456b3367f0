"""`frog slurm explain` finds every trap in a file that contains it, and none in correct files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from frog.cluster.jobfile.cluster_profile import ClusterProfile, load_profile
from frog.cluster.jobfile.explain import TRAP_MODULES, TRAPS, explain
from frog.cluster.jobfile.findings import Trap

ROOT = Path(__file__).parents[3]

GOOD = r"""#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4        # each node's
#SBATCH --cpus-per-task=32
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=tiny-%j.out
set -euo pipefail
trap 'scancel --signal=TERM "$SLURM_JOB_ID"' USR1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS=8
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 bash -c '
  exec torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node=4 \
    --node-rank="$SLURM_NODEID" \
    --master-addr="$MASTER_ADDR" \
    --master-port="$MASTER_PORT" \
    --shutdown-timeout=100 \
    train.py run.toml --continue' &
step=$!
wait "$step" || wait "$step"
scontrol requeue "$SLURM_JOB_ID"
"""
"""A correct job of two nodes with four ranks each."""

SRUN = "".join(GOOD.splitlines(keepends=True)[16:25])
PLAIN = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 '
TWO_GPUS = ("--gpus-per-node=4", "--gpus-per-node=2")
EACH = "--ntasks-per-node=4 python train.py --continue &\n"
WAIT = 'step=$!\nwait "$step" || wait "$step"\n'
NO_SIGNAL = (
    ("#SBATCH --signal=B:USR1@120\n", ""),
    ("trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' USR1\n", ""),
    ('scontrol requeue "$SLURM_JOB_ID"\n', ""),
)

CASES: dict[str, tuple[str, int, tuple[tuple[str, str], ...]]] = {
    # A name, the expected trap or advice, its line, and the changes in GOOD.
    "no shebang": ("no-shebang", 1, (("#!/bin/bash\n", "# a job\n"),)),
    "windows": ("dos-lines", 3, (("--nodes=2\n", "--nodes=2\r\n"),)),
    "space after hash": ("not-a-directive", 3, (("#SBATCH --nodes", "# SBATCH --nodes"),)),
    "no #SBATCH": ("no-directive", 3, (("#SBATCH --nodes=2", "--comment=$(touch${IFS}x)"),)),
    "space before hash": ("not-a-directive", 3, (("#SBATCH --nodes", " #SBATCH --nodes"),)),
    "small letters": ("not-a-directive", 3, (("#SBATCH --nodes", "#sbatch --nodes"),)),
    "directive below": ("after-a-command", 13, (("pipefail\n", "pipefail\n#SBATCH --mem=10G\n"),)),
    "misspelt": ("not-an-option", 4, (("--ntasks-per-node=1", "--ntask-per-node=1"),)),
    "dash of a text editor": ("not-an-option", 2, (("--job-name", "\u2013job-name"),)),
    "equals after short": ("not-an-option", 3, (("--nodes=2", "-N=2"),)),
    "spaces around equals": ("not-an-option", 3, (("--nodes=2", "--nodes = 2"),)),
    "no value": ("not-an-option", 2, (("--job-name=tiny", "--job-name"),)),
    "value for an option without one": ("not-an-option", 9, (("--requeue", "--requeue=yes"),)),
    "srun misspelt": ("not-an-option", 17, (("--kill-on-bad-exit=1", "--kill-on-bad-exits=1"),)),
    "two memories": (
        "two-memories",
        5,
        (("--ntasks-per-node=1", "--ntasks-per-node=1 --mem=9G\n#SBATCH --mem-per-cpu=1G"),),
    ),
    "more tasks than fit": ("tasks-beyond-nodes", 4, (("--ntasks-per-node=1", "--ntasks-per-node=1 --ntasks=8"),)),
    "fewer tasks than nodes": ("tasks-below-nodes", 4, (("--ntasks-per-node=1", "--ntasks=1"),)),
    "variable": ("variable-in-directive", 11, (("tiny-%j.out", "$HOME/tiny-%j.out"),)),
    "words for numbers": ("not-a-number", 6, (("--cpus-per-task=32", "--cpus-per-task=all"),)),
    "said twice": ("said-twice", 4, (("--ntasks", "--nodes=3 --ntasks"),)),
    "total gpus": ("uneven-gpus", 5, (("--gpus-per-node=4", "--gpus=7"),)),
    "total gpus, short": ("uneven-gpus", 5, (("--gpus-per-node=4", "-G 7"),)),
    "total gpus as gres": ("total-gpus", 5, (("--gpus-per-node=4", "--gres=gpu:8"),)),
    "total gpus as gres with a type": ("total-gpus", 5, (("--gpus-per-node=4", "--gres=gpu:h100:8"),)),
    "total gpus per node": ("total-gpus", 5, (("--gpus-per-node=4", "--gpus-per-node=8"),)),
    "no time": ("no-time-limit", 1, (("#SBATCH --time=00:30:00\n", ""),)),
    "not a time": ("not-a-time", 7, (("00:30:00", "half-an-hour"),)),
    "two numbers": ("time-in-minutes", 7, (("00:30:00", "24:00"),)),
    "one number": ("time-in-minutes", 7, (("00:30:00", "48"),)),
    "hours, by its comment": ("time-in-minutes", 7, (("00:30:00", "10   # hours"),)),
    "one output": (
        "output-overwritten",
        10,
        (("tiny-%j.out", "tiny.out"), ("#SBATCH --open-mode=append\n", "")),
    ),
    "no folder": ("no-output-folder", 11, (("tiny-%j.out", "logs/tiny-%j.out"),)),
    "a signal that does not exist": ("refused", 8, (("USR1@120", "USR7@120"),)),
    "python for torchrun": ("python-twice", 25, (("train.py run", "python train.py run"),)),
    "a shell script for torchrun": ("python-twice", 25, (("train.py run", "./train.sh run"),)),
    "one host": ("head-fixed", 14, (('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "node01"),)),
    "one address": ("head-fixed", 14, (('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "10.0.0.7"),)),
    "fewer total gpus than ranks": ("uneven-gpus", 5, (("--gpus-per-node=4", "--gpus=4"), ("--nodes=2", "--nodes=3"))),
    "module behind the environment": (
        "python-replaced",
        13,
        (("pipefail\n", "pipefail\n. venv/bin/activate; module load python/3.12\n"),),
    ),
    "module behind conda": (
        "python-replaced",
        14,
        (("pipefail\n", "pipefail\nconda activate x\nml gcc anaconda3/2024\n"),),
    ),
    "no srun": ("torchrun-without-srun", 17, ((SRUN, "torchrun --nnodes=2 --nproc-per-node=4 train.py --continue\n"),)),
    "standalone": ("nodes-apart", 19, (('--nnodes="$SLURM_NNODES"', "--standalone"),)),
    "no nnodes": ("nodes-apart", 18, (('    --nnodes="$SLURM_NNODES" \\\n', ""),)),
    "other nnodes": ("nnodes-differ", 19, (('"$SLURM_NNODES"', "4"),)),
    "torchrun for each gpu": ("ranks-doubled", 4, (("--ntasks-per-node=1", "--ntasks-per-node=4"),)),
    "torchrun for each of ntasks": ("ranks-doubled", 4, (("--ntasks-per-node=1", "--ntasks=8"),)),
    "torchrun for each, srun": ("ranks-doubled", 17, (("--kill-on-bad-exit=1", "-K --ntasks-per-node=4"),)),
    "more ranks": ("ranks-beyond-gpus", 20, (("--nproc-per-node=4", "--nproc-per-node=8"), ("--nodes=2", "--nodes=3"))),
    "fewer ranks": ("gpus-idle", 20, (("--nproc-per-node=4", "--nproc-per-node=3"),)),
    "one rank": ("one-rank", 18, (("    --nproc-per-node=4 \\\n", ""),)),
    "no node rank": ("node-rank", 18, (('    --node-rank="$SLURM_NODEID" \\\n', ""),)),
    "node rank 0": ("node-rank", 21, (('"$SLURM_NODEID"', "0"),)),
    "local id": ("node-rank", 21, (('"$SLURM_NODEID"', '"$SLURM_LOCALID"'),)),
    "double quotes": ("read-too-early", 21, (("bash -c '", 'bash -c "'), ("--continue'", '--continue"'))),
    "node id on the srun line": (
        "read-too-early",
        18,
        (
            (
                SRUN,
                PLAIN + "torchrun --nnodes=2 --nproc-per-node=4 \\\n --node-rank=$SLURM_NODEID \\\n"
                " --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py --continue &\n",
            ),
        ),
    ),
    "node id in a variable": (
        "read-too-early",
        17,
        (("srun ", "export NODE_RANK=$SLURM_NODEID\nsrun "), ('"$SLURM_NODEID"', '"$NODE_RANK"')),
    ),
    "launcher in a variable": (
        "read-too-early",
        17,
        (
            (
                SRUN,
                'LAUNCHER="torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$SLURM_NODEID"\n'
                + PLAIN
                + 'bash -c "$LAUNCHER --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py --continue" &\n',
            ),
        ),
    ),
    "not exported": ("not-exported", 15, (("export MASTER_ADDR MASTER_PORT", "export MASTER_ADDR"),)),
    "localhost": (
        "head-localhost",
        14,
        (('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "localhost"),),
    ),
    "127.0.0.1": ("head-localhost", 22, (('"$MASTER_ADDR"', "127.0.0.1"),)),
    "hostname -I": (
        "many-addresses",
        14,
        (('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "$(hostname -I)"),),
    ),
    "endpoint localhost": (
        "head-localhost",
        22,
        (
            ('--master-addr="$MASTER_ADDR" \\\n', "--rdzv-endpoint=localhost:29400 \\\n"),
            ("--node-rank", "--rdzv-backend=c10d --x"),
            ('    --master-port="$MASTER_PORT" \\\n', ""),
        ),
    ),
    "hostname in a task": ("head-of-its-own", 22, (('"$MASTER_ADDR"', '"$(hostname)"'),)),
    "own name in a task": ("head-of-its-own", 18, (("exec torchrun", "MASTER_ADDR=$SLURMD_NODENAME\nexec torchrun"),)),
    "last host": ("head-not-node-0", 14, (("head -n 1", "tail -n 1"),)),
    "sorted hosts": ("head-not-node-0", 14, (("head -n 1", "sort -r | head -n 1"),)),
    "folded list": (
        "nodelist-folded",
        14,
        (('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "${SLURM_JOB_NODELIST%%,*}"),),
    ),
    "random in a task": ("port-per-task", 23, (('"$MASTER_PORT"', '"$((20000 + RANDOM % 1000))"'),)),
    "random port of a task": (
        "port-per-task",
        18,
        (("exec torchrun", "MASTER_PORT=$(shuf -i 20000-30000 -n 1)\nexec torchrun"),),
    ),
    "port from the task": ("port-per-task", 23, (('"$MASTER_PORT"', '"$((20000 + SLURM_PROCID))"'),)),
    "fixed port": (
        "port-fixed",
        15,
        (
            TWO_GPUS,
            ("$((10000 + SLURM_JOB_ID % 20000))", "29500"),
        ),
    ),
    "fixed port at torchrun": (
        "port-fixed",
        23,
        (
            TWO_GPUS,
            ('"$MASTER_PORT"', "29500"),
        ),
    ),
    "no port": (
        "port-fixed",
        18,
        (
            TWO_GPUS,
            ('    --master-port="$MASTER_PORT" \\\n', ""),
            ("MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\n", ":\n"),
        ),
    ),
    "growing port": ("port-beyond", 15, (("10000 + SLURM_JOB_ID % 20000", "29500 + SLURM_JOB_ID"),)),
    "port 80": ("port-beyond", 15, (("$((10000 + SLURM_JOB_ID % 20000))", "80"),)),
    "open quote": (
        "quote-not-closed",
        17,
        (("--continue' &", "--continue &"), ("trap '", "trap "), ("\"' USR1", '" USR1')),
    ),
    "no kill": ("goes-on-without-one", 17, ((SRUN, PLAIN.replace("--kill-on-bad-exit=1 ", "") + EACH),)),
    "kill off": ("goes-on-without-one", 17, ((SRUN, PLAIN.replace("exit=1", "exit=0") + EACH),)),
    "mpirun, fewer ranks": ("gpus-idle", 17, ((SRUN, "mpirun -n 3 python train.py --continue &\n"),)),
    "no cpus": ("cpus-not-passed-on", 17, (('--cpus-per-task="$SLURM_CPUS_PER_TASK" ', ""),)),
    "no wait": ("no-wait", 17, (('wait "$step" || wait "$step"\n', ""),)),
    "module too late": ("prepared-too-late", 26, (("step=$!\n", "module load cuda\nstep=$!\n"),)),
    "no set -e": (
        "goes-on-after-errors",
        17,
        (
            ("set -euo pipefail", "set -u"),
            ("--continue' &", "--continue'"),
            ('step=$!\nwait "$step" || wait "$step"\n', ""),
        ),
    ),
    "blank behind =": ("blank-behind-equals", 17, (("srun ", "RUN= 'a run'\necho $RUN\nsrun "),)),
    "python alone": ("first-node-only", 15, (*NO_SIGNAL, (SRUN, "python train.py --continue\n"), (WAIT, ""))),
    "signal, no requeue": ("no-requeue", 8, (("#SBATCH --requeue\n", ""), ('scontrol requeue "$SLURM_JOB_ID"\n', ""))),
    "signal, requeue refused": ("no-requeue", 9, (("#SBATCH --requeue", "#SBATCH --no-requeue"),)),
    "not a signal": ("not-a-signal", 8, (("B:USR1@120", "USR1:B@120"),)),
    "signal at once": ("signal-at-once", 8, (("@120", "@3600"),)),
    "no trap": ("signal-not-trapped", 8, (("\"' USR1", "\"' USR2"),)),
    "no B": ("signal-not-for-script", 8, (("B:USR1", "USR1"),)),
    "torchrun dies": ("signal-kills-torchrun", 8, (("B:USR1", "USR1"), ("\"' USR1", "\"' USR2"))),
    "foreground": ("trap-comes-too-late", 13, (("--continue' &", "--continue'"),)),
    "TERM to srun": ("srun-forces", 13, (('scancel --signal=TERM "$SLURM_JOB_ID"', 'kill -TERM "$step"'),)),
    "short grace": ("short-grace", 18, (("    --shutdown-timeout=100 \\\n", ""),)),
    "from the start": ("begins-again", 9, ((" --continue", ""),)),
    "log lost": ("log-truncated", 9, (("#SBATCH --open-mode=append\n", ""),)),
    "pip": ("network", 17, (("srun ", "pip install torch\nsrun "),)),
    "a plugin's option": ("site-option", 4, (("--ntasks-per-node=1", "--ntasks-per-node=1 --image=x"),)),
    "a template": ("template", 6, (("--cpus-per-task=32", "--cpus-per-task={{ cpus }}"),)),
    "text that no shell can parse": ("not-understood", 17, (("srun ", "echo )\nsrun "),)),
    "a list in sh": ("bash-in-sh", 17, (("#!/bin/bash", "#!/bin/sh"), ("srun ", "A=(1 2)\nsrun "))),
    "its own folder": ("not-its-folder", 13, (("pipefail\n", 'pipefail\ncd "$(dirname "$0")"\n'),)),
    "its own folder, kept": ("not-its-folder", 13, (("pipefail\n", "pipefail\nHERE=${BASH_SOURCE[0]%/*}\n"),)),
    "a signal past python": (
        "signal-to-nobody",
        8,
        ((SRUN, "python train.py --continue\n"), ("B:USR1", "USR1"), NO_SIGNAL[1]),
    ),
    "a dollar kept": ("dollar-kept", 17, (("srun ", "cd \\$HOME/x\nsrun "),)),
    "else with a colon": ("no-such-word", 19, (("srun ", "if true; then\n :\nelse:\n :\nfi\nsrun "),)),
    "a bracket without its blank": ("no-such-word", 17, (("srun ", "if [$# -eq 0]; then exit 1; fi\nsrun "),)),
    "an image of the first node": (
        "on-first-node-only",
        17,
        (("srun ", "docker build -t x .\nsrun "), ("exec torchrun", "docker run x torchrun")),
    ),
    "data on the first node": (
        "on-first-node-only",
        18,
        (("srun ", "HERE=$SLURM_TMPDIR/data\ncp -r data ${HERE}\nexport HERE\nsrun "), ("run.toml", "run.toml $HERE")),
    ),
    "blanks": ("blank-behind-equals", 15, (("MASTER_PORT=$", "MASTER_PORT = $"),)),
    "a dollar before a name": ("dollar-before-name", 15, (("MASTER_PORT=$", "$MASTER_PORT=$"),)),
    "an answer for a number": (
        "answer-for-number",
        26,
        (("step=$!", "next=$(sbatch b.sh)\nsbatch --dependency=afterok:$next c.sh\nstep=$!"),),
    ),
    "blanks behind export": ("blank-behind-equals", 15, (("MASTER_PORT=$", "export MASTER_PORT = $"),)),
    "an id by chance": (
        "meeting-per-task",
        18,
        (("exec torchrun \\\n", "exec torchrun --rdzv-id=$RANDOM --rdzv-backend=c10d \\\n"),),
    ),
}
PLANTED = {item["code"] for item in tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["planted"]}
MN5_HEAD = "#SBATCH --account=bsc01 --qos=acc_debug --partition=acc\n"
ON_MN5: dict[str, tuple[str, int, tuple[tuple[str, str], ...]]] = {
    "pip": ("no-network", 18, (("srun ", "pip install torch\nsrun "),)),
    "wget in a task": ("no-network", 19, (("exec torchrun", "wget http://example.org/x\nexec torchrun"),)),
    "conda": ("no-network", 18, (("srun ", "conda install -y numpy\nsrun "),)),
    "eight": ("total-gpus", 6, (("--gpus-per-node=4", "--gres=gpu:8"),)),
    "three hours of debug": ("time-limit-too-long", 8, (("00:30:00", "03:00:00"),)),
    "nine nodes of debug": ("too-many-nodes", 4, (("--nodes=2", "--nodes=9"),)),
    "no account": ("no-account", 1, (("--account=bsc01 ", ""),)),
    "no qos": ("no-qos", 1, (("--qos=acc_debug ", ""),)),
    "few cpus": ("few-cpus", 7, (("--cpus-per-task=80", "--cpus-per-task=57"),)),
}  # fmt: skip


def changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text


def found(text: str, here: Path, profile: ClusterProfile | None = None) -> dict[str, int]:
    return {finding.code: finding.line for finding in explain(text, Path("job.sbatch"), profile, (here,)).findings}


@pytest.mark.parametrize("name", CASES)
def test_trap_is_reported_in_its_line(name: str, tmp_path: Path) -> None:
    code, line, changes = CASES[name]
    (tmp_path / "train.py").touch()  # so the test's folder looks like the folder of submission
    assert found(changed(GOOD, changes), tmp_path).get(code) == line


@pytest.mark.parametrize("name", ON_MN5)
def test_profile_enables_more_traps(name: str, tmp_path: Path) -> None:
    code, line, changes = ON_MN5[name]
    text = changed(on_mn5(), changes)
    assert found(text, tmp_path, load_profile("marenostrum5", ROOT / "config/clusters")).get(code) == line
    assert code not in found(on_mn5(), tmp_path, load_profile("marenostrum5", ROOT / "config/clusters"))


def on_mn5() -> str:
    return changed(
        GOOD, (("#SBATCH --job-name", MN5_HEAD + "#SBATCH --job-name"), ("--cpus-per-task=32", "--cpus-per-task=80"))
    )


def test_missing_output_folder_is_reported_until_it_exists(tmp_path: Path) -> None:
    _, _, changes = CASES["no folder"]
    assert found(changed(GOOD, changes), tmp_path) == {"no-output-folder": 11}
    assert explain(changed(GOOD, changes), Path("job.sbatch"), None, ()).findings == ()
    (tmp_path / "logs").mkdir()
    assert found(changed(GOOD, changes), tmp_path) == {}


def test_correct_file_has_no_findings(tmp_path: Path) -> None:
    assert found(GOOD, tmp_path) == {}
    assert found(on_mn5(), tmp_path, load_profile("marenostrum5", ROOT / "config/clusters")) == {}


def test_every_trap_has_a_test_case() -> None:
    tried = {code for code, _, _ in [*CASES.values(), *ON_MN5.values()]} | PLANTED | {"byte-order-mark"}
    assert tried == TRAPS.keys()


def test_every_trap_module_is_loaded_and_every_code_is_unique() -> None:
    folder = ROOT / "src" / "frog" / "cluster" / "jobfile"
    assert {Path(str(module.__file__)) for module in TRAP_MODULES} == set(folder.glob("traps_*.py"))
    traps = {id(trap): trap.code for module in TRAP_MODULES for trap in vars(module).values() if isinstance(trap, Trap)}
    assert sorted(traps.values()) == sorted(TRAPS)


def test_example_job_has_no_traps() -> None:
    text = (ROOT / "config" / "slurm_example.sbatch").read_text()
    assert found(text, ROOT) == {}


@pytest.mark.parametrize(
    "change",
    [
        # Other correct forms of the same job.
        (("--gpus-per-node=4", "--gres=gpu:4"),),
        (("--gpus-per-node=4", "--gres=gpu:h100:4"),),
        (("--ntasks-per-node=1", "--ntasks=2"),),
        (("--nproc-per-node=4", '--nproc_per_node="$SLURM_GPUS_ON_NODE"'),),
        (("--kill-on-bad-exit=1", "-K1"),),
        (("--nodes=2", "-N 2"), ("--time=00:30:00", "-t 30")),
        (("exec torchrun", "exec .venv/bin/python -m torch.distributed.run"),),
        (("srun --cpus", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun --mem=0 --cpus"),),
        (("bash -c '", 'bash -c "'), ("--continue'", '--continue"'), ('"$SLURM_NODEID"', r"\$SLURM_NODEID"),
         ('"$SLURM_NNODES"', "$SLURM_NNODES"), ('="$MASTER_ADDR"', "=$MASTER_ADDR"),
         ('="$MASTER_PORT"', "=$MASTER_PORT")),
        (("exec torchrun", "apptainer exec --nv image.sif torchrun"),),
        ((SRUN, 'N=4\nARGS=" \\\n --kill-on-bad-exit=1 "\n'
          'LAUNCHER="torchrun --nproc_per_node $N --nnodes $SLURM_NNODES"\n'
          'srun -c32 $ARGS bash -c "$LAUNCHER --node_rank \\$SLURM_NODEID --master_addr $MASTER_ADDR \\\n'
          '  --master_port $MASTER_PORT train.py --continue" &\n'),),
        (("MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)",
          "nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\nMASTER_ADDR=${nodes[0]}"),),
        (("#SBATCH --output=tiny-%j.out\n", ""),),
        (("head -n 1", "head -1"),),
        (("srun --cpus", "pip install --no-index --find-links=wheels frog\nsrun --cpus"),),
        (("srun --cpus", "cat > notes.txt <<END\npip install $SLURM_NODEID \"\nEND\nsrun --cpus"),),
    ],
    ids=lambda change: change[0][1][:30],
)  # fmt: skip
def test_equivalent_correct_files_have_no_traps(change: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    explanation = explain(changed(GOOD, change), Path("job.sbatch"), None, (tmp_path,))
    assert explanation.traps == []


@pytest.mark.parametrize(
    ("written", "code", "instead"),
    [
        ("--ntasks-per-nod=1", None, None),  # an unambiguous prefix, which getopt accepts
        ("--ntask-per-node=1", "not-an-option", "--ntasks-per-node=1"),
        ("--ntakss-per-node=1", "not-an-option", "--ntasks-per-node=1"),
        ("--image=x.sqsh", "site-option", None),
        ("--ntask-per-nodes=1", "site-option", None),
    ],
)
def test_correction_is_offered_only_one_letter_away(written: str, code: str, instead: str, tmp_path: Path) -> None:
    text = changed(GOOD, (("--ntasks-per-node=1", f"--ntasks-per-node=1 {written}"),))
    found = [item for item in explain(text, Path("job.sbatch"), None, (tmp_path,)).findings if item.line == 4]
    assert [(item.code, item.instead) for item in found] == ([(code, instead)] if code else [])


HETEROGENEOUS = """#!/bin/bash
#SBATCH --time=00:30:00 --account=p1
#SBATCH --partition=cpu --nodes=1 --ntasks=1 --mem=32G
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --mem-per-cpu=4G
set -euo pipefail
srun --het-group=0 ./server : --het-group=1 --nodes=2 --ntasks=8 ./client
"""
"""Two components, each with its own requests."""


@pytest.mark.parametrize("word", ["hetjob", "packjob"])
def test_components_of_a_heterogeneous_job_are_separate(word: str, tmp_path: Path) -> None:
    found = explain(HETEROGENEOUS.replace("hetjob", word), Path("job.sbatch"), None, (tmp_path,))
    assert found.findings == ()
    assert found.job.nodes == 1


@pytest.mark.parametrize("options", ["--port 6379 --daemonize yes", "redis.conf"])
def test_daemonizing_server_is_not_a_foreground_server(options: str, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH --time=1:00:00 --ntasks=1\nset -e\nredis-server {options}\npython client.py\n"
    assert "never-returns" not in {item.code for item in explain(text, Path("j"), None, (tmp_path,)).findings}


HEAD = "#!/bin/bash\n#SBATCH --time=1:00:00 --nodes=2 --ntasks-per-node=1 --gpus-per-node=4\n"
STEP = "srun --kill-on-bad-exit=1 "
NARROWED = {
    "Lightning in a step of one node": f"{STEP}-N 1 -n 1 python a.py trainer.num_nodes=1 &\n"
    f"{STEP}-N 1 -n 1 python b.py trainer.num_nodes=1 &\nwait\n",
    "Lightning in a step of more tasks": f"{STEP}--ntasks-per-node=4 python train.py trainer.devices=4\n",
    "variables for a container": f"{STEP}--export=NVTE=1 --container-image=x.sqsh python train.py\n",
    "variables for a program with its path": f"{STEP}--export=NVTE=1 /opt/bin/python train.py\n",
    "a GPU for each task, set in the task": f"{STEP}--ntasks-per-node=4 bash -c '"
    "CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python train.py'\n",
    "every GPU of the node by number": f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{STEP}python train.py\n",
    "an MPI of no name": "mpirun -np 16 ./a.out\n",
    "the number of the only task of a step": f'{STEP}-N 1 -n 1 python a.py --seed "$SLURM_PROCID" &\n'
    f'{STEP}-N 1 -n 1 python b.py --seed "$SLURM_PROCID" &\nwait\n',
    "a server with an end": "timeout 3600 vllm serve m &\npython eval.py\nwait\n",
    "WORLD_SIZE, set for each step": f"export WORLD_SIZE=4\n{STEP}-N 1 -n 4 --gpus-per-node=4 python a.py\n"
    f"export WORLD_SIZE=8\n{STEP}-N 2 -n 8 python b.py\n",
}


@pytest.mark.parametrize("name", NARROWED)
def test_ambiguous_text_causes_no_trap(name: str, tmp_path: Path) -> None:
    assert explain(HEAD + NARROWED[name], Path("job.sbatch"), None, (tmp_path,)).traps == []


def test_suggested_correction_is_right(tmp_path: Path) -> None:
    def instead(*changes: tuple[str, str]) -> set[str | None]:
        return {item.instead for item in explain(changed(GOOD, changes), Path("job"), None, (tmp_path,)).findings} - {
            None
        }

    assert instead(("--gpus-per-node=4", "--gpus=7")) >= {"#SBATCH --gpus-per-node=N"}
    assert instead(("--gpus-per-node=4", "--gres=gpu:h100:8")) == {"#SBATCH --gres=gpu:h100:4"}
    assert instead(("tiny-%j.out", "tiny.out"), ("#SBATCH --open-mode=append\n", "")) >= {"--output=tiny-%j.out"}
    assert "#SBATCH --nodes=2" in instead(("#SBATCH --nodes=2", "# SBATCH --nodes=2"))
