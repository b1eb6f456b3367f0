"""Call vocabulary_loss with this rank's part of logits that the check knows."""

import itertools
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of a case
IGNORED = -100


def make_logits(case: dict[str, Any]) -> Tensor:
    """Return the whole logits; each rank's part of the vocabulary is shifted by a number of its own."""
    generator = torch.Generator().manual_seed(case["seed"])
    logits_NV = 2 * torch.randn(case["cuts"][-1], case["positions"], generator=generator).T
    for shift, (start, end) in zip(case["shifts"], bounds(case), strict=True):
        logits_NV[:, start:end] += shift
    return logits_NV


def bounds(case: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the first token of each rank's part, and the first token after it."""
    return list(itertools.pairwise(case["cuts"]))


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        start, end = bounds(case)[dist.get_rank()]
        logits_Nv = make_logits(case)[:, start:end].requires_grad_()
        labels_N = torch.stack([torch.tensor(case["labels"])] * 2, 1)[:, 0]  # not contiguous
        loss = learner.vocabulary_loss(logits_Nv, labels_N, start)
        (loss * case["weight"]).backward()
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
        found.append({"loss": loss, "gradient": logits_Nv.grad, "labels": labels_N})
    return found
