"""torch's optimizers without torch's compiler.

torch marks some methods of its optimizers as not to be compiled when they are first called, and imports the compiler
for that: 800 modules, more than a second of every rank's start. These classes have the methods without the mark.
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
