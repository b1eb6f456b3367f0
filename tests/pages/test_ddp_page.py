"""Tutorial script 2: verify its logs' claims, from the logs alone and with one process."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from harness import Harness, all_gone, tree, wait_until
from page_harness import TINY, PageHarness, finish, make_page_harness

from frog.core.config import load_model_config
from frog.core.runs.folder import RunFolder
from frog.train.data import Windows, open_prepared
from frog.train.model import TinyTransformer

PAGE = "ddp_simulation_train.py"


@pytest.fixture
def pages(harness: Harness, tmp_path: Path) -> PageHarness:
    return make_page_harness(harness, tmp_path)


class Log:
    """One rank's parsed log."""

    def __init__(self, pages: PageHarness, rank: int, run: str = "ddp_simulation") -> None:
        self.text = RunFolder(pages.root / "runs" / run).rank_log(rank).read_text()
        assert set(re.findall(r"^rank (\d+) \|", self.text, re.MULTILINE)) == {str(rank)}
        found = re.findall(r"step \d+ \| samples ([\d ]+) \|", self.text)
        self.ids = [[int(word) for word in words.split()] for words in found]
        self.weights = re.findall(r"weights ([0-9a-f]{16}) ", self.text)
        numbers = re.findall(r"loss ([\d.]+) \| gradient norm before ([\d.]+) \| after ([\d.]+)", self.text)
        self.numbers = [tuple(map(float, row)) for row in numbers]


def logs_of(pages: PageHarness, world_size: int) -> list[Log]:
    logs = [Log(pages, rank) for rank in range(world_size)]
    assert (
        len({len(log.weights) for log in logs} | {len(log.ids) for log in logs} | {len(log.numbers) for log in logs})
        == 1
    )
    return logs


def test_two_ddp_ranks_share_the_samples_and_have_equal_weights(pages: PageHarness) -> None:
    out, _ = pages.page(PAGE, "--samples", "24", "--batch-size", "3", *TINY, nproc=2)
    assert "epoch 2 | 24 samples, each used by one rank, once" in out
    first, second = logs_of(pages, 2)
    assert len(first.ids) == 8
    for epoch in (slice(0, 4), slice(4, 8)):
        mine, theirs = ({sample for ids in log.ids[epoch] for sample in ids} for log in (first, second))
        assert not mine & theirs
        assert mine | theirs == set(range(24))
    assert first.ids[:4] != first.ids[4:], "set_epoch changes the order"
    assert first.weights == second.weights
    assert len(set(first.weights)) == 8, "every step changes the weights"
    assert (pages.root / "logs" / "rank_1" / "train.log").read_text() == second.text
    compare_with_one_process(pages, [first, second])


def compare_with_one_process(pages: PageHarness, logs: list[Log]) -> None:
    """Recompute the first step's numbers: each rank's own gradient, and their mean."""
    torch.manual_seed(1337)
    model = TinyTransformer(load_model_config(pages.root / "config.json"))
    windows = Windows(open_prepared("rhymes", pages.root / "data").split("train"), 16)
    gradients = []
    for log in logs:
        model.zero_grad()
        tokens = torch.from_numpy(windows.gather(torch.tensor(log.ids[0]).numpy()))
        loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
        assert log.numbers[0][0] == pytest.approx(loss.item(), abs=2e-4)
        assert log.numbers[0][1] == pytest.approx(gradients[-1].norm().item(), abs=2e-4)
    averaged = torch.stack(gradients).mean(0).norm().item()
    assert not math.isclose(averaged, gradients[0].norm().item(), abs_tol=2e-3)
    for log in logs:
        assert log.numbers[0][2] == pytest.approx(averaged, abs=2e-4)


@pytest.mark.slow
def test_ddp_script_reports_padding(pages: PageHarness) -> None:
    out, _ = pages.page(PAGE, "--samples", "13", "--batch-size", "2", "--epochs", "1", *TINY, nproc=3)
    counts = Counter(sample for log in logs_of(pages, 3) for ids in log.ids for sample in ids)
    again = sorted(sample for sample, count in counts.items() if count > 1)
    assert set(counts) == set(range(13))
    assert counts.total() == 15
    assert f"padding repeated {again}" in out
    assert "5 for each of 3 ranks, 2 of them padding" in out


@pytest.mark.slow
def test_ddp_script_under_plain_python_is_a_world_of_one(pages: PageHarness) -> None:
    pages.page(PAGE, "--samples", "6", "--batch-size", "2", "--forget", "set_epoch", *TINY)
    (log,) = logs_of(pages, 1)
    assert all(before == pytest.approx(after, rel=1e-3) for _, before, after in log.numbers)
    assert log.ids[:3] == log.ids[3:], "without set_epoch every epoch has the same order"


@pytest.mark.slow
def test_ddp_script_detects_a_missing_sampler(pages: PageHarness) -> None:
    _, err = pages.page(PAGE, "--samples", "12", "--forget", "sampler", *TINY, nproc=2, code=1)
    assert "went to ranks [0, 1] in one step" in err


@pytest.mark.slow
def test_failing_ddp_rank_ends_the_world(pages: PageHarness) -> None:
    process = pages.start_page(PAGE, "--samples", "60", "--fail-rank", "2", "--fail-step", "3", *TINY, nproc=3)
    log = pages.root / "logs" / "rank_2" / "train.log"
    wait_until(lambda: log.exists(), "the log of rank 2", process)
    family = tree(process)
    _, err = finish(process, 1)
    assert "rank 2 fails in step 3, as requested by --fail-rank and --fail-step" in err
    assert all_gone(family)
    texts = [Log(pages, rank).text for rank in range(3)]
    assert "Traceback" in texts[2]
    assert "FAILED: RuntimeError: rank 2 fails in step 3" in texts[2]
    for text in texts[:2]:  # torchrun may end them before they can report an error
        assert "step 1 | weights" in text  # rank 2 took part in step 2
        assert "step 3 | weights" not in text
        assert "rank 2 fails" not in text


@pytest.mark.slow
def test_ddp_script_reports_a_usage_error_once(pages: PageHarness) -> None:
    _, err = pages.page(PAGE, "--fail-rank", "2", *TINY, code=2)
    assert "the ranks are 0 to 0" in err
    assert "Traceback" not in err
