"""torch's optimizers without torch's compiler.

torch marks some optimizer methods as not to be compiled at their first call, and imports the compiler for that: 800
modules, which add more than a second to every rank's start. These classes use the unmarked methods.
"""

from __future__ import annotations

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """The base class of Frog's optimizers."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """torch's AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class EagerSGD(EagerOptimizer, torch.optim.SGD):
    """torch's SGD."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
