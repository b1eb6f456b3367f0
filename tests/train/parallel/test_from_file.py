"""A strategy of one's own in a world of one: each method is called in its place, and mistakes name file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from frog.core.env import world_env
from frog.core.errors import CommError, ConfigError, OwnStrategyError
from frog.train.comm import World
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.parallel.build_strategy import build_mesh, build_strategy
from frog.train.parallel.data.from_file import explained
from frog.train.parallel.own import OwnStrategy
from frog.train.prove.matrix import ALL_VARIANTS, DEFAULT_VARIANTS, SMALL_MODEL, Cell, Variant, own_cells
from frog.train.prove.prove_rank import Case, local_batch, make_model, optimizer_config

EXAMPLE = Path(__file__).parents[3] / "config" / "own_ddp.py"
CPU = torch.device("cpu")
PLAIN, REST = DEFAULT_VARIANTS
MUON = next(variant for variant in ALL_VARIANTS if variant.optimizer == "muon")


@pytest.fixture(autouse=True)
def _leave_the_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def build(path: Path, text: str, variant: Variant = PLAIN) -> tuple[OwnStrategy, Case]:
    """Build the strategy in a file with this text, in a world of one."""
    path.write_text(text)
    (cell,) = own_cells(SMALL_MODEL, [1], [variant], str(path))
    assert isinstance(cell, Cell), cell
    case = Case.of(cell.fields(0), Path("case.json"))
    mesh = build_mesh(case.config, World(world_env(), CPU, timeout_s=10))
    make_optimizer = partial(build_optimizer, optimizer_config(case))
    strategy = build_strategy(case.config, mesh, make_model(case, seed=0), make_optimizer)
    assert isinstance(strategy, OwnStrategy)
    return strategy, case


def take_step(strategy: OwnStrategy, case: Case) -> None:
    loss = strategy.forward_backward(local_batch(case, strategy.mesh, 1), lambda loss: loss)
    strategy.reduce(loss, stop=False)
    strategy.clip(strategy.norm(), 1.0)
    strategy.step(torch.amp.GradScaler("cpu", enabled=False))
    strategy.zero()


def example(old: str = "", new: str = "") -> str:
    """Return the example with one change."""
    text = EXAMPLE.read_text()
    assert old in text
    return text.replace(old, new) if old else text


def test_methods_are_called_in_the_order_of_a_step(tmp_path: Path) -> None:
    calls = "\n".join(
        f"    def {name}(self, *given):\n        CALLS.append(({name!r}, *given))\n"
        for name in ("before_backward", "after_backward", "zero")
    )
    text = example("        pass\n", f"        CALLS.append(('gather',))\n\n{calls}\n")
    text = text.replace("    def reduce(self):\n", "    def reduce(self):\n        CALLS.append(('reduce',))\n")
    strategy, case = build(tmp_path / "mine.py", f"CALLS = []\n{text}", REST)
    take_step(strategy, case)
    import frog_strategy_file  # type: ignore[import-not-found]

    assert frog_strategy_file.CALLS == [
        ("before_backward", False),
        ("after_backward", False),
        ("before_backward", True),
        ("after_backward", True),
        ("reduce",),
        ("gather",),
        ("zero",),
    ]


def test_default_zero_removes_all_gradients(tmp_path: Path) -> None:
    strategy, case = build(tmp_path / "mine.py", example())
    take_step(strategy, case)
    assert all(parameter.grad is None for parameter in strategy.model.parameters())


def test_frozen_parameters_are_saved_whole_and_not_owned(tmp_path: Path) -> None:
    strategy, _ = build(tmp_path / "mine.py", example(), REST)
    weights = dict(strategy.whole())
    assert set(weights) == set(strategy.shapes)
    frozen = [name for name, parameter in strategy.model.named_parameters() if not parameter.requires_grad]
    assert frozen
    assert {shard.name for shard in strategy.moment_shards()} == {
        f"{moment}/{name}" for moment in ("exp_avg", "exp_avg_sq") for name in weights if name not in frozen
    }


def test_measured_memory_is_the_models_and_the_owned_tensors(tmp_path: Path) -> None:
    strategy, case = build(tmp_path / "mine.py", example())
    strategy.forward_backward(local_batch(case, strategy.mesh, 1), lambda loss: loss)
    parameters, gradients = strategy.held()
    count = sum(parameter.numel() for parameter in strategy.model.parameters())
    for tensors in (parameters, gradients):
        assert sum({x.data_ptr(): x.numel() for x in tensors if x is not None}.values()) == count


def test_file_may_import_a_module_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "my_helpers_of_ddp.py").write_text("import torch.distributed as dist\n")
    build(tmp_path / "mine.py", example("import torch.distributed as dist", "from my_helpers_of_ddp import dist"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def build(", "def make(", "mine.py: has no function build(model, group)"),
        ("    return DDP(model, group)", "    DDP(model, group)", "mine.py:6: build returns None"),
        ("def build(model, group)", "def build(model)", "mine.py:6: build: Frog calls build(model, group): too many "),
        ("def reduce(self)", "def reduce(self, last)", "mine.py:18: reduce: Frog calls reduce(): missing a required "),
        ("def gather(self)", "def gather()", "mine.py:23: gather: "),
        (
            "        pass",
            "        pass\n\n    def after_backward(self):\n        pass",
            "mine.py:26: after_backward: Frog calls after_backward(last): too many positional arguments",
        ),
        ("def gather(", "def collect(", "mine.py:6: build returns a DDP without the method gather"),
        ("import torch.distributed", "import torch.distribute", "mine.py:3, in <module>: ModuleNotFoundError: No"),
        ("model.named_parameters()", "model.parameters()", "mine.py:13, in "),
        ("[(name, 0, p) for", "[(name, p) for", "mine.py:15: owned: on rank 0, item 0 is a tuple"),
        (
            "[(name, 0, p) for",
            "[(name, 1, p) for",
            "mine.py:15: owned: rank 0 owns embed_tokens.weight, elements 1 to ",
        ),
        ("in self.named]", "in self.named[1:]]", "mine.py:15: owned: no rank owns embed_tokens.weight, elements 0 to "),
        ("p.grad /= self.group.size()", "p.grad = None", "mine.py:18: reduce: rank 0 has no gradient for the tensor"),
        ("p.grad /= self.group.size()", "exit(3)", "mine.py:21, in reduce: SystemExit: 3"),
        (
            "model.named_parameters() if p.requires_grad",
            "model.named_parameters(remove_duplicate=False)",
            "mine.py:15: owned: on rank 0, item 38: 'lm_head.weight' is the same parameter as embed_tokens.weight: ",
        ),
        ("p.grad /= self.group.size()", "p.gard /= 2", "mine.py:21, in reduce: AttributeError: "),
        (
            "        pass",
            "        self.named[0][1].data = self.named[0][1].data[:1]",
            "mine.py:15: owned: the tensor of ",
        ),
        ("        pass", "        dist.all_reduce(1)", "mine.py:24, in gather: TypeError: "),
        ("self.group = group", "model.register_forward_hook(lambda *x: x[9])", "mine.py:12, in <lambda>: IndexError: "),
    ],
)
def test_mistake_is_reported_with_file_and_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    def use() -> None:
        strategy, case = build(tmp_path / "mine.py", example(old, new))
        take_step(strategy, case)
        strategy.parameter_shards()

    with pytest.raises(OwnStrategyError) as caught:
        use()
    assert caught.value.what.removeprefix(f"{tmp_path}/").startswith(words)


def test_frozen_parameter_that_a_rank_owns_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OwnStrategyError, match=r"'layers\..* is frozen: leave it out") as caught:
        build(tmp_path / "mine.py", example(" if p.requires_grad"), REST)
    assert caught.value.hint == "docs/train/own-strategy.md has the rules for `owned`"


def test_freed_frozen_parameter_is_reported(tmp_path: Path) -> None:
    text = example("self.group = group", "self.group = group; model.layers[0].mlp.up_proj.weight.data = group.x")
    text = text.replace("group.x", "next(model.parameters()).data[:0]")
    strategy, _ = build(tmp_path / "mine.py", text, REST)
    with pytest.raises(OwnStrategyError, match=re.escape("layers.0.mlp.up_proj.weight is no longer whole")):
        strategy.parameter_shards()


def test_muon_refuses_parts_of_a_matrix(tmp_path: Path) -> None:
    text = example("[(name, 0, p) for name, p in self.named]", "list(parts(self.named))")
    halves = """
def parts(named):
    for name, p in named:
        for start in (0, p.numel() // 2):
            yield name, start, torch.nn.Parameter(p.data.flatten()[start : start + p.numel() // 2])
"""
    with pytest.raises(ConfigError, match="but Muon needs whole matrices"):
        build(tmp_path / "mine.py", f"import torch\n{text}{halves}", MUON)


def test_error_from_elsewhere_is_not_the_files(tmp_path: Path) -> None:
    axis = World(world_env(), CPU, timeout_s=10).axis
    with pytest.raises(ZeroDivisionError), explained(tmp_path / "mine.py", axis):
        raise ZeroDivisionError


def test_lost_peer_is_an_error_of_communication_with_the_line(tmp_path: Path) -> None:
    text = example("        pass", "        raise RuntimeError('gloo: Connection closed by peer')")
    strategy, case = build(tmp_path / "mine.py", text)
    with pytest.raises(CommError, match=r"a collective of .*mine.py:24, in gather failed") as caught:
        take_step(strategy, case)
    assert caught.value.facts.cause == "closed"
