"""Incidental claims in the documentation are true: quoted code, commands in sentences, behaviour of torch."""

from __future__ import annotations

import inspect
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import LIMIT_S

from frog.cli import _parser
from frog.cluster.emulator.emulated_cluster import up
from frog.learn.grader.job_clusters import EmulatedSlurm

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*(DOCS / "scale").glob("*.md"), *(DOCS / "teach").glob("*.md")]
    + [DOCS / f"{name}.md" for name in ("learn/course", "troubleshooting")]
)
QUOTED = re.compile(r"`((?:src|config|scripts)/[\w./-]+)`:\s`([^`]+)`")
COMMAND = re.compile(r"`(?:\w+=\S+ )?(frog [^`]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_quoted_code_line_exists_in_its_file(page: Path) -> None:
    quoted = QUOTED.findall(page.read_text())
    assert page.relative_to(DOCS) != Path("scale/README.md") or len(quoted) > 12
    assert [place for place in quoted if place[1] not in (ROOT / place[0]).read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_command_quoted_in_a_sentence_is_valid(page: Path) -> None:
    for command in COMMAND.findall(FENCE.sub("", page.read_text())):
        words = [re.sub(r"\bN\b", "1", word) for word in shlex.split(command)[1:]]
        if all(
            re.fullmatch("[a-z-]+", word) and word[0] != "-" for word in words
        ):  # without arguments: `frog slurm explain`
            assert re.search(rf"^ +{words[0]}\b", _parser().format_help(), re.MULTILINE), command
        else:
            _parser().parse_args(words)


def launcher_columns() -> dict[str, list[str]]:
    """Return the names in each launcher's column of lab 3's table of variables."""
    lines = (DOCS / "labs/lab3.md").read_text().splitlines()
    header = next(index for index, line in enumerate(lines) if "`torchrun` sets" in line)
    rows = [line.split("|")[3:6] for line in lines[header + 2 : header + 8]]
    columns = zip(*rows, strict=True)
    return dict(
        zip(("torchrun", "srun", "mpirun"), (re.findall("`([A-Z_]+)`", " ".join(c)) for c in columns), strict=True)
    )


def printed_by(command: list[str]) -> set[str]:
    """Return the names of variables that the command adds to a process's environment."""
    known = ("RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_")
    environ = {name: value for name, value in os.environ.items() if not any(part in name for part in known)}
    program = "import os; print(*os.environ)"
    done = subprocess.run(
        [*command, sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.slow
def test_torchrun_sets_the_variables_of_lab_3_and_no_node_rank() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--no-python"]
    found = printed_by(torchrun)
    names = launcher_columns()["torchrun"]
    assert len(names) == 7
    assert set(names) <= found
    assert "NODE_RANK" not in found


def test_slurm_sets_the_variables_of_lab_3() -> None:
    text = (ROOT / "src/frog/cluster/emulator/job_processes.py").read_text()
    names = launcher_columns()["srun"]
    assert len(names) == 5
    assert [name for name in names if f'"{name}"' not in text] == []


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI")
def test_mpirun_sets_the_variables_of_lab_3_and_no_address() -> None:
    found = printed_by(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "1"])
    names = launcher_columns()["mpirun"]
    assert len(names) == 4
    assert set(names) <= found
    assert not {"MASTER_ADDR", "MASTER_PORT"} & found


ONE_LEAVES = """
import sys, torch, torch.distributed as dist
path, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
dist.all_reduce(torch.ones(1))
print("joined", flush=True)
if rank == 1:
    sys.stdin.read()  # alive, in other work, until the test closes its input
    sys.exit()
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_gloo_waits_for_a_living_peer_and_reports_one_that_ended(tmp_path: Path) -> None:
    """Lab 2's theory and its question `one-batch-less` claim this."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", ONE_LEAVES, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], text=True, **pipes) for rank in range(2)]
    try:
        assert all(rank.stdout is not None and rank.stdout.readline() == "joined\n" for rank in ranks)
        assert ranks[0].poll() is None
        ranks[1].communicate(timeout=LIMIT_S)
        assert "Connection closed by peer" in ranks[0].communicate(timeout=LIMIT_S)[1]
    finally:
        for rank in ranks:
            rank.kill()


def test_autocast_on_a_cpu_keeps_sums_of_bf16_numbers_in_bf16() -> None:
    """Lab 2's theory and the glossary list only the loss, the weights and the gradients as float32."""
    weight = torch.ones(8, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.ones(8, 8) @ weight
        loss = torch.nn.functional.cross_entropy(product, torch.zeros(8, dtype=torch.long))
        assert (product.dtype, product.sum().dtype, loss.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    for page in ("labs/lab2.md", "glossary.md"):
        assert "the loss, the weights and their gradients in 32" in " ".join((DOCS / page).read_text().split())


def test_check_of_lab_3_8_shortens_kill_wait_and_a_learners_cluster_does_not() -> None:
    """Exercise 3.8: KillWait is 30 s by default, and 0.5 s in the check."""
    page = (ROOT / "labs/lab3/08_jobs_that_end/README.md").read_text()
    assert re.search(r"`KillWait`:\s+30\s+s\s+by\s+default,[^)]*\s0\.5\s+s", page)
    assert inspect.signature(up).parameters["kill_wait_s"].default == 30
    assert "kill_wait_s=0.5" in inspect.getsource(EmulatedSlurm)


def mean_of_means(samples: list[tuple[int, float]], num_ranks: int) -> float:
    """The mean over ranks of each rank's loss per token, with the padding of a DistributedSampler."""
    padded = samples + samples[: -len(samples) % num_ranks]
    shares = [padded[rank::num_ranks] for rank in range(num_ranks)]
    return statistics.mean(sum(loss for _, loss in share) / sum(size for size, _ in share) for share in shares)


def test_mean_of_means_of_50_samples_differs_by_half_a_percent_between_worlds() -> None:
    """Exercise 3.9: the difference between 8 ranks and 4."""
    page = (ROOT / "labs/lab3/09_evaluate/README.md").read_text()
    assert re.search(r"50 samples\s+of\s+5\s+to\s+200\s+tokens[^.]*\b0\.5 %", page)
    generator, differences = random.Random(0), []
    for _ in range(300):
        sizes = [generator.randint(5, 200) for _ in range(50)]
        samples = [(size, size * generator.gauss(3, 0.5)) for size in sizes]
        differences.append(abs(mean_of_means(samples, 8) - mean_of_means(samples, 4)) / 3)
    assert 0.004 < statistics.median(differences) < 0.006


def test_waiting_gpu_of_the_example_uses_as_much_memory_as_the_other() -> None:
    page = (DOCS / "scale/README.md").read_text()
    (first, second) = re.findall(r"^\d, NVIDIA H100 80GB HBM3, (\d+) %, (\d+) MiB, (\d+) MiB", page, re.MULTILINE)
    assert int(second[0]) < int(first[0])
    assert second[1] == first[1] < second[2]


def test_reduce_is_a_comment_in_the_loop_of_one_process() -> None:
    """The notes of session A's slide with the loop."""
    lines = (ROOT / "scripts/train_tiny_transformer.py").read_text().splitlines()
    assert [line.strip()[0] for line in lines if "Reduce:" in line] == ["#"]
