"""The judge."""

import torch

from frog.learn.grader.grade import Grade


def check(grade: Grade) -> None:
    x_N = torch.randn(5, generator=torch.Generator().manual_seed(grade.seed))
    found = grade.call({"x": x_N}).values[0]
    if isinstance(found, torch.Tensor) and torch.equal(found, x_N**2):
        grade.reject("squares-it", f"{x_N[0]:.3f} became {found[0]:.3f}.")
    grade.compare(found, 2 * x_N, "twice each element")
