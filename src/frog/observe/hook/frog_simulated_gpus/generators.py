"""Random numbers: each simulated GPU has a generator, and what is drawn on a GPU leaves the CPU's generator alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .placement import HOST, Gpus, Place, place, place_for, place_of, special, tagged_if_known

_Generator = torch._C.Generator


class GpuGenerator(_Generator):
    """A generator of the CPU that says which GPU it stands for."""

    index = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the GPU's name."""
        return torch.device("cuda", self.index)


of_gpus: list[GpuGenerator] = []
"""The default generator of each GPU."""


def make_generator(device: Any = "cpu") -> Any:
    """Make what `torch.Generator(device)` asks for."""
    from .tensors import index_of, is_gpu

    if not is_gpu(device):
        return _Generator(device)
    generator = GpuGenerator()
    generator.index = index_of(device)
    return generator


@contextlib.contextmanager
def drawing(where: Place, generator: Any = None) -> Iterator[None]:
    """Draw from a GPU's generator inside a block, unless the call names one."""
    if where is None or (generator is None and (where == HOST or where >= len(of_gpus))):
        yield
        return
    if generator is not None:
        _check(generator, where)
        yield
        return
    default, own = torch.default_generator, of_gpus[where]
    before = default.get_state()
    default.set_state(own.get_state())
    try:
        yield
    finally:
        own.set_state(default.get_state())
        default.set_state(before)


def _check(generator: Any, where: int) -> None:
    kinds = ["cuda" if isinstance(generator, GpuGenerator) else "cpu", "cpu" if where == HOST else "cuda"]
    if kinds[0] != kinds[1]:
        raise RuntimeError(f"Expected a '{kinds[1]}' device type for generator but found '{kinds[0]}'")


_METHODS = ("normal_", "uniform_", "random_", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_")
_FUNCTIONS = ("bernoulli", "multinomial", "normal", "poisson", "binomial", "dropout", "dropout_", "rrelu", "rrelu_",
              "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_", "feature_alpha_dropout",
              "feature_alpha_dropout_", "native_dropout", "rand_like", "randn_like", "randint_like", "lstm", "gru",
              "rnn_tanh", "rnn_relu")  # fmt: skip
_NN = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu",
       "gumbel_softmax", "multi_head_attention_forward", "fractional_max_pool2d", "fractional_max_pool3d")  # fmt: skip


def _random(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    where = place_for(func, args, kwargs)
    with drawing(where, kwargs.get("generator")):
        result = func(*args, **kwargs)
    return tagged_if_known(result, where)


def _dropping(position: int, name: str, default: float) -> Callable[[Any, Any, dict[str, Any]], Any]:
    """Handle a function that draws with a probability, 0 for none, unless its argument `training` is false.

    position, name, default: those of the probability.
    """

    def handle(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        probability = args[position] if len(args) > position else kwargs.get(name, default)
        if probability and kwargs.get("training", True):
            return _random(func, args, kwargs)
        return tagged_if_known(func(*args, **kwargs), place_for(func, args, kwargs))

    return handle


def _state(generator: Any) -> torch.Tensor:
    result: torch.Tensor = place(generator.get_state(), HOST)
    return result


def _set_state(generator: Any, state: torch.Tensor) -> None:
    if place_of(state) not in (HOST, None):
        raise TypeError("RNG state must be a torch.ByteTensor")
    generator.set_state(state)


def _set_states(new_states: list[torch.Tensor]) -> None:
    for generator, state in zip(of_gpus, new_states, strict=False):
        _set_state(generator, state)


def _of(device: Any) -> GpuGenerator:
    from .tensors import index_of

    return of_gpus[index_of(device)]


def manual_seed(seed: int) -> None:
    """Seed the current GPU."""
    of_gpus[Gpus.current].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all GPUs."""
    for generator in of_gpus:
        generator.manual_seed(int(seed))


def _seed_all() -> None:
    manual_seed_all(of_gpus[0].seed())


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "manual_seed": manual_seed,
    "manual_seed_all": manual_seed_all,
    "seed": lambda: of_gpus[Gpus.current].seed(),
    "seed_all": _seed_all,
    "initial_seed": lambda: of_gpus[Gpus.current].initial_seed(),
    "get_rng_state": lambda device="cuda": _state(_of(device)),
    "get_rng_state_all": lambda: [_state(generator) for generator in of_gpus],
    "set_rng_state": lambda new_state, device="cuda": _set_state(_of(device), new_state),
    "set_rng_state_all": _set_states,
}
"""Functions of torch.cuda about random numbers."""


def patch_generators() -> None:
    """Give each GPU its generator, and let the functions that draw use it."""
    from .replace import replace

    for index in range(Gpus.count):
        generator = GpuGenerator()
        generator.index = index
        generator.manual_seed(torch.default_generator.initial_seed())
        of_gpus.append(generator)
    for owner, names in (
        (torch.Tensor, (*_METHODS, "bernoulli", "multinomial")),
        (torch, _FUNCTIONS),
        (torch.nn.functional, _NN),
        (torch.nn.init, [name for name in dir(torch.nn.init) if name.endswith("_") and not name.endswith("__")]),
    ):
        for name in names:
            function = getattr(owner, name, None)
            if function is not None:
                special[function] = _random
                inner = getattr(function, "__wrapped__", None)
                if inner is not None:
                    special[inner] = _random
    functional = torch.nn.functional
    special[functional.scaled_dot_product_attention] = _dropping(4, "dropout_p", 0.0)
    special[functional.multi_head_attention_forward] = _dropping(10, "dropout_p", 0.0)
    special[functional.dropout] = _dropping(1, "p", 0.5)
    for owner in (torch, torch.random):
        replace(owner, "get_rng_state", lambda: _state(torch.default_generator))
        replace(owner, "set_rng_state", lambda new_state: _set_state(torch.default_generator, new_state))
