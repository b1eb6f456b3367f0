"""What a rank records of its steps, in this process: forwards, backwards, gradients, weights, and the limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from frog.observe.check.rank_records import RankRecord, read_records
from frog.observe.hook.frog_observer.checks import (
    module_facts,
    program_objects,
    user_lines,
    watched_collectives,
    watched_functions,
    watched_states,
)
from frog.observe.hook.frog_observer.checks.step_recorder import StepRecorder
from frog.observe.hook.frog_observer.place import Place


def place_in(folder: Path) -> Place:
    rank = folder / "observed" / "attempt_0" / "rank_0"
    return Place(0, 0, 0, 1, 0, "pond", str(rank), "", "", "")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[StepRecorder]:
    made = StepRecorder(place_in(tmp_path), 4)
    made.hook_modules()
    yield made
    made.is_on = False
    made.hook_modules()
    made._file.close()


class Training:
    """A model and its optimizer, as a program and the observer's hooks use them."""

    def __init__(self, recorder: StepRecorder, model: nn.Module | None = None, lr: float = 0.5) -> None:
        self.recorder = recorder
        self.model = model or nn.Sequential(nn.Linear(2, 1, bias=False), nn.Dropout(0.0))
        for parameter in self.model.parameters():
            nn.init.ones_(parameter)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.5)
        recorder.objects.on_made(self.optimizer, ["train.py", 3, "main"], is_optimizer=True)

    def backward(self, x: torch.Tensor | None = None, times: float = 1.0) -> torch.Tensor:
        x = torch.tensor([[1.0, 2.0]]) if x is None else x
        loss: torch.Tensor = times * nn.functional.mse_loss(self.model(x), torch.zeros(len(x), 1))
        self.recorder.on_backward(loss, ["train.py", 9, "main"])
        loss.backward()  # type: ignore[no-untyped-call]
        self.recorder.after_backward()
        return loss

    def step(self) -> None:
        self.recorder.before_step(self.optimizer)
        self.optimizer.step()
        self.recorder.after_step(self.optimizer)

    def take(self, number: int = 1, clear: bool = True) -> None:
        for _ in range(number):
            if clear:
                self.optimizer.zero_grad()
            self.backward()
            self.step()


def read(recorder: StepRecorder, folder: Path) -> RankRecord:
    recorder._file.flush()
    return read_records(folder)[0]


def test_first_three_steps_and_every_fourth_are_sampled(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.take(9)
    record = read(recorder, tmp_path)
    assert [step.number for step in record.steps if step.gradients is not None] == [1, 2, 3, 4, 8]
    assert [bool(step.forwards) for step in record.steps] == [step.gradients is not None for step in record.steps]
    assert (record.start.rank, record.start.world_size, record.start.every) == (0, 1, 4)
    assert record.start.torch == torch.__version__


def test_step_has_the_numbers_of_its_tensors(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder, lr=0.25)
    loss = training.backward()
    training.step()
    (step,) = read(recorder, tmp_path).steps
    assert (step.optimizer, step.step, step.number, step.lr, step.stale) == (0, 1, 1, [0.25], False)
    gradient, weight = step.gradients[0], step.weights[0]  # type: ignore[index]
    assert gradient is not None
    assert weight is not None
    assert gradient.norm == pytest.approx((6.0**2 + 12.0**2) ** 0.5)
    assert weight.norm == pytest.approx((0.5**2 + 2.0**2) ** 0.5)
    assert step.before != [weight.bits]
    assert (step.changed, step.state) == ([1.0], [["float32"]])
    (backward,) = step.backwards
    assert (backward.loss, backward.adds, str(backward.line)) == (loss.item(), False, "train.py:9 (main)")
    assert [(node.name, node.reduction) for node in backward.graph][:2] == [
        *[("MulBackward0", None), ("MseLossBackward0", 1)]
    ]
    assert backward.bits == {0: [gradient.bits]}
    assert (step.messages, step.exchanges, step.calls) == (False, False, [])


def test_forward_is_that_of_the_outermost_module(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.model.eval()
    with torch.no_grad():
        training.model(torch.ones(3, 2))
    training.model.train()
    training.take()
    record = read(recorder, tmp_path)
    evaluated, trained = record.steps[0].forwards
    assert (evaluated.training, evaluated.grad, trained.training, trained.grad) == (False, False, True, True)
    assert (evaluated.module, evaluated.sync, len(evaluated.rows or []), len(trained.rows or [])) == (0, None, 3, 1)
    assert evaluated.random is not None
    module = record.modules[0]
    assert (module.name, module.wrapper, module.inside, module.modes) == ("Sequential", None, None, False)
    (parameter,) = record.tables[0].parameters
    assert (parameter.names, parameter.module, parameter.shape, parameter.dtype) == (["0.weight"], 0, [1, 2], "float32")
    assert (parameter.trained, parameter.ddp, parameter.owner, parameter.constant) == (True, None, "Linear", True)
    assert str(record.tables[0].made) == "train.py:3 (main)"


@pytest.mark.parametrize(("probability", "modes"), [(0.0, False), (0.1, True)])
def test_model_has_modes_if_it_drops_or_normalizes(
    recorder: StepRecorder, tmp_path: Path, probability: float, modes: bool
) -> None:
    Training(recorder, nn.Sequential(nn.Linear(2, 1), nn.Dropout(probability))).take()
    Training(recorder, nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))).backward(torch.ones(2, 2))
    assert [module.modes for module in read(recorder, tmp_path).modules.values()] == [modes, True]


def test_gradients_that_were_never_cleared_are_stale(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.take(2, clear=False)
    training.take(1)
    steps = read(recorder, tmp_path).steps
    assert [step.stale for step in steps] == [False, True, False]
    assert [step.backwards[0].adds for step in steps] == [False, True, False]


def test_micro_batches_add_to_a_cleared_gradient(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.take()
    training.optimizer.zero_grad()
    training.backward()
    training.backward()
    training.step()
    step = read(recorder, tmp_path).steps[1]
    assert ([each.adds for each in step.backwards], step.stale, len(step.forwards)) == ([False, True], False, 2)


def test_step_that_changes_nothing_says_so(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder, lr=0.0)
    training.backward()
    training.step()
    training.optimizer.zero_grad()
    training.step()
    first, second = read(recorder, tmp_path).steps
    assert (first.changed, second.changed, second.gradients) == ([0.0], [None], [None])
    assert first.before[0] == first.weights[0].bits  # type: ignore[union-attr]


def test_output_that_is_not_finite_is_named_once(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.backward(torch.full((1, 2), float("inf")))
    training.backward(torch.full((1, 2), float("nan")))
    training.step()
    (step,) = read(recorder, tmp_path).steps
    assert [(call.call, call.module) for call in step.calls] == [("not_finite", "0 (Linear)")]
    assert step.weights[0] is not None
    assert step.weights[0].norm is None
    assert [backward.loss for backward in step.backwards] == [None, None]


def test_parameter_outside_of_every_optimizer_is_listed_at_the_end(recorder: StepRecorder, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
    training = Training(recorder, model)
    training.optimizer.param_groups[0]["params"] = [model[0].weight]
    recorder.objects.on_made(model[1].weight, ["train.py", 5, "main"])
    training.take()
    training.backward()
    recorder.at_end()
    end = read(recorder, tmp_path).end
    assert end is not None
    assert [(each.module, each.name, str(each.made)) for each in end.outside] == [(0, "1.weight", "train.py:5 (main)")]
    assert (end.steps, end.backwards, end.messages, end.exchanges, end.calls) == (1, 1, False, False, [])


@pytest.mark.parametrize(("number", "kept"), [(63, 63), (64, 64), (65, 64)])
def test_at_most_64_calls_and_forwards_of_a_step_are_kept(
    recorder: StepRecorder, tmp_path: Path, number: int, kept: int
) -> None:
    training = Training(recorder)
    for _ in range(number):
        recorder.on_call({"call": "barrier"})
        training.backward()
    training.step()
    (step,) = read(recorder, tmp_path).steps
    assert (len(step.calls), len(step.forwards), len(step.backwards)) == (kept, kept, kept)


@pytest.mark.parametrize(("number", "kept"), [(4096, 4096), (4097, 4096)])
def test_at_most_4096_batches_are_kept(recorder: StepRecorder, tmp_path: Path, number: int, kept: int) -> None:
    for batch in range(number):
        recorder.on_batch({"loader": 0, "iteration": 0, "batch": batch})
    batches = read(recorder, tmp_path).batches
    assert (len(batches), {batch.step for batch in batches}) == (kept, {0})


def test_file_of_64_mib_ends_the_recording(recorder: StepRecorder, tmp_path: Path) -> None:
    recorder.on_batch({"loader": 0, "iteration": 0, "batch": 0})
    recorder._file._bytes = 64 << 20
    recorder.on_batch({"loader": 0, "iteration": 0, "batch": 1})
    recorder.on_batch({"loader": 0, "iteration": 0, "batch": 2})
    recorder.on_batch({"loader": 0, "iteration": 0, "batch": 3})
    record = read(recorder, tmp_path)
    assert ([batch.batch for batch in record.batches], record.stopped) == ([0, 1], "the file has reached 64 MiB")
    assert not recorder.is_on


def test_error_while_tensors_are_read_stops_the_recording(recorder: StepRecorder, tmp_path: Path) -> None:
    with recorder.reading():
        raise ValueError("x" * 600)
    record_of = (tmp_path / "observed/attempt_0/rank_0/checks.jsonl").read_text().splitlines()
    assert json.loads(record_of[-1]) == {"kind": "stopped", "why": "ValueError: " + "x" * 488}
    Training(recorder).take()
    assert read(recorder, tmp_path).steps == []


def test_objects_are_numbered_in_order_and_forgotten() -> None:
    known = program_objects.Known()
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    assert [known.number(each) for each in (first, second, first)] == [0, 1, 0]
    assert (known.has(second), known.has(nn.Linear(1, 1)), list(known)) == (True, False, [(0, first), (1, second)])
    del second
    assert [number for number, _ in known] == [0]
    assert known.number(nn.Linear(2, 2)) in (1, 2)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a.weight", "a.weight"),
        ("module.a.weight", "a.weight"),
        ("_orig_mod.module.a.weight", "a.weight"),
        ("a._checkpoint_wrapped_module.weight", "a.weight"),
        ("a._fsdp_wrapped_module.module.weight", "a.module.weight"),
        ("module", ""),
    ],
)
def test_name_of_a_parameter_is_without_its_wrappers(name: str, plain: str) -> None:
    assert module_facts.plain_name(name) == plain


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[("DistributedDataParallel", "ddp"), ("FullyShardedDataParallel", "fsdp1"), ("FSDPModule", "fsdp2")],
        *[("DeepSpeedEngine", "deepspeed"), ("Linear", None)],
    ],
)
def test_wrapper_is_known_by_its_class_or_a_base_of_it(name: str, kind: str | None) -> None:
    base = type(name, (), {})
    assert module_facts.kind_of(base()) == module_facts.kind_of(type("Own", (base,), {})()) == kind


@pytest.mark.parametrize(
    ("values", "constant"), [([1.0, 1.0], True), ([1.0, 2.0], False), ([], True), ([2.0, 1.0, 2.0], False)]
)
def test_constant_tensor_has_equal_elements(values: list[float], constant: bool) -> None:
    assert program_objects.is_constant(torch.tensor(values)) == constant
    assert program_objects.is_constant(torch.ones(2, device="meta"))


def test_graph_of_a_loss_has_its_last_six_operations() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = x.exp().log().sin().cos().tanh().sum() * 2
    names = [name for name, *_ in module_facts.graph_of(loss)]
    assert names == ["MulBackward0", "SumBackward0", "TanhBackward0", "CosBackward0", "SinBackward0", "LogBackward0"]
    assert module_facts.graph_of(None) == module_facts.graph_of(torch.ones(1)) == []
    logits = torch.zeros(4, 3, requires_grad=True)
    entropy = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, -100]))
    assert module_facts.graph_of(entropy)[0] == ["NllLossBackward0", 1, 3.0, None]
    assert [name for name, *_ in module_facts.graph_of(x + x.exp())] == ["AddBackward0"]


def test_optimizer_of_flat_tensors_names_its_parts(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    weight = next(training.model.parameters())
    flat = nn.Parameter(weight.detach().view(-1))
    training.optimizer = torch.optim.SGD([flat], lr=0.5)

    def named_parts() -> list[tuple[str, tuple[int, ...], tuple[int, ...], torch.Tensor, torch.Tensor | None]]:
        assert weight.grad is not None
        return [("0.weight", (0, 1), (1, 2), flat.detach()[1:].view(1, 1), weight.grad[:, 1:])]

    recorder.objects.on_made(training.optimizer, ["train.py", 3, "main"], is_optimizer=True)
    training.backward()
    flat.grad = weight.grad.view(-1) if weight.grad is not None else None
    vars(training.optimizer).update(named_parts=named_parts, clipped=(2.0, 1.0))
    training.step()
    record = read(recorder, tmp_path)
    step = record.steps[0]
    (parameter,) = record.tables[step.optimizer].parameters
    assert (parameter.names, parameter.shape) == (["0.weight"], [1, 1])
    assert (parameter.offset, parameter.whole) == ([0, 1], [1, 2])
    assert step.gradient(0) is not None
    assert [(call.call, call.norm, call.limit) for call in step.calls] == [("clip", 2.0, 1.0)]
    assert step.changed == [1.0]


def test_gradients_of_micro_batches_that_are_never_cleared_are_stale(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    for clears in (False, False, True):
        if clears:
            training.optimizer.zero_grad()
        training.backward()
        training.backward()
        training.step()
    assert [step.stale for step in read(recorder, tmp_path).steps] == [False, True, False]


def test_backward_before_the_gradients_are_cleared_is_forgiven(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.take()
    training.backward()  # of something else
    training.take()
    assert [step.stale for step in read(recorder, tmp_path).steps] == [False, False]


class DistributedDataParallel(nn.Module):
    """Calls a module, as torch's wrapper of this name does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)
        return result


def test_mode_is_that_of_the_module_inside_a_wrapper(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder, DistributedDataParallel(nn.Sequential(nn.Linear(2, 1, bias=False))))
    training.model.training = False
    training.take()
    training.model.module.eval()
    training.take()
    modes = [forward.training for step in read(recorder, tmp_path).steps for forward in step.forwards]
    assert modes == [True, False]


class WithLayersInAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1, bias=False)
        self.layers = [nn.Linear(2, 2, bias=False)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layers[0](x))
        return result


def test_layers_in_a_list_are_strangers(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder, WithLayersInAList())
    training.take(2)
    recorder.at_end()
    record = read(recorder, tmp_path)
    assert record.end is not None
    assert [(each.name, each.stranger) for each in record.end.outside] == [("weight of a Linear", True)]


def test_line_inside_is_named_if_a_library_calls_the_model(
    recorder: StepRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_lines, "is_called_by_user", lambda frame: recorder._depth > 1)
    monkeypatch.setattr(user_lines, "line_of", lambda frame: [f"depth {recorder._depth}", 1, "main"])
    Training(recorder).take()
    assert [forward.line and forward.line.file for forward in read(recorder, tmp_path).steps[0].forwards] == ["depth 2"]


class Llama(nn.Module):
    """Has what a model of transformers has for its ends."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self, ties: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=ties)
        self.embedding, self.head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_head_is_untied_only_if_the_configuration_ties_it() -> None:
    model = Llama(True)
    assert module_facts.untied_head(DistributedDataParallel(model)) is model.head.weight
    assert module_facts.untied_head(Llama(False)) is None
    model.head.weight = model.embedding.weight
    assert module_facts.untied_head(model) is None


def test_adapters_are_counted_and_those_that_learn() -> None:
    model = nn.ModuleDict({"lora_a": nn.Linear(2, 2), "base": nn.Linear(2, 2)})
    model["lora_a"].bias.requires_grad = False
    assert module_facts.adapters(model) == [2, 1]


class Shared(torch.autograd.Function):
    """A sum over ranks, as all layers of a library call it; the line of the layer says more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, lines: list[Any]) -> torch.Tensor:
        lines.append(watched_collectives._line_of_layer(sys._getframe()))
        return x


class Layer(nn.Module):
    def forward(self, x: torch.Tensor, lines: list[Any]) -> Any:
        return Shared.apply(x, lines)  # type: ignore[no-untyped-call]


def test_line_of_a_layer_is_outside_of_what_all_layers_share() -> None:
    lines: list[Any] = []
    Layer()(torch.ones(1), lines)
    code = Layer.forward.__code__
    assert lines == [[code.co_filename, code.co_firstlineno + 1, "forward"]]
    Shared.apply(torch.ones(1), lines)  # type: ignore[no-untyped-call]
    assert lines[1] is None


def test_lines_that_choose_and_change_parameters_are_recorded(recorder: StepRecorder, tmp_path: Path) -> None:
    watched_functions._Functions(recorder).watch_parameters(torch)
    kind, first = vars(nn.Parameter), sys._getframe().f_lineno
    training = Training(recorder, nn.Sequential(nn.Linear(2, 1)))
    for name, parameter in training.model.named_parameters():
        parameter.requires_grad = name == "0.weight"
    training.take()
    assert "__setattr__" not in kind
    with torch.no_grad():
        training.model[0].weight.clamp_(-9, 9)  # type: ignore[index, operator]
    training.take(2)
    assert "clamp_" in kind
    training.take()  # the fifth step is not sampled
    assert "clamp_" not in kind
    record = read(recorder, tmp_path)
    chosen = [each.selected and each.selected.line for each in record.tables[0].parameters]
    assert chosen == [first + 3, first + 3]
    # the optimizer changes the weights in each step
    assert [[call.line and call.line.line for call in step.calls] for step in record.steps[:3]] == [[], [first + 7], []]


def test_line_that_decides_the_same_for_all_parameters_chose_none(recorder: StepRecorder, tmp_path: Path) -> None:
    watched_functions._Functions(recorder).watch_parameters(torch)
    training = Training(recorder, nn.Sequential(nn.Linear(2, 1)))
    training.model.requires_grad_(True)
    training.take()
    assert [each.selected for each in read(recorder, tmp_path).tables[0].parameters] == [None, None]


def test_layer_that_torch_makes_is_not_drawn_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []
    uniform_ = torch.Tensor.uniform_

    def uniform(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        drawn.append(watched_functions._is_drawn_by_user(sys._getframe(1)))
        return uniform_(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "uniform_", uniform)
    layer = nn.Linear(2, 1, bias=False)
    layer.reset_parameters()
    nn.init.uniform_(layer.weight)
    assert drawn == [False, True, True]


def test_what_each_backward_pass_brings_adds_up_to_the_gradient(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.backward()
    training.backward(torch.tensor([[3.0, -1.0]]))
    training.step()
    (step,) = read(recorder, tmp_path).steps
    first, second = (backward.brought[0][0] for backward in step.backwards)
    assert first != second
    assert step.parts[0] == pytest.approx([one + other for one, other in zip(first, second, strict=True)])
    assert training.model[0].weight._backward_hooks == {}  # type: ignore[union-attr]


def test_gradient_that_no_backward_pass_brought_is_left(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    shard = nn.Parameter(torch.ones(3))
    training.optimizer.add_param_group({"params": [shard]})

    def reduced(gradient: torch.Tensor) -> None:
        shard.grad = gradient.sum() * torch.tensor([1.0, 2.0, 3.0])

    training.model[0].weight.register_hook(reduced)  # type: ignore[union-attr, operator]
    training.backward()
    shard.grad.mul_(0.5)  # type: ignore[union-attr]
    training.step()
    (step,) = read(recorder, tmp_path).steps
    assert list(step.backwards[0].brought[0]) == [0]
    assert step.parts[1] == pytest.approx([0.5 * each for each in step.backwards[0].left[0][1]])


def test_gradients_of_a_step_that_is_not_sampled_are_not_taken(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    training.take(5)
    steps = read(recorder, tmp_path).steps
    assert [bool(step.parts) for step in steps] == [True, True, True, True, False]


def test_line_that_scales_a_gradient_is_recorded_until_the_step(
    recorder: StepRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched_functions._Functions(recorder).watch_parameters(torch)
    monkeypatch.setattr(user_lines, "line_of", lambda frame: [frame.f_code.co_filename, 1, frame.f_code.co_name])
    monkeypatch.setattr(user_lines.frames, "is_user_file", lambda name: name == __file__)
    own = dict(vars(torch.Tensor))
    training = Training(recorder)
    training.backward()
    torch.ones(1).mul_(2.0)
    for each in training.model.parameters():
        assert each.grad is not None
        each.grad.mul_(0.5)
        each.grad /= 2
    training.step()
    assert dict(vars(torch.Tensor)) == own
    (step,) = read(recorder, tmp_path).steps
    assert [call.call for call in step.calls] == ["gradient_written"]


def test_thread_that_saves_what_is_trained_is_recorded(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    for state in (training.model.state_dict(), {"kept": torch.ones(2)}):
        recorder.on_save_beside(state, tmp_path / "model.pt", ["train.py", 4, "save"])
    training.take()
    (step,) = read(recorder, tmp_path).steps
    assert [(call.call, call.live) for call in step.calls] == [("save", True)]


class Recomputed(nn.Module):
    """Drops in a part that is computed again in the backward pass."""

    def __init__(self, keeps_state: bool) -> None:
        super().__init__()
        self.keeps_state = keeps_state
        self.first, self.drop, self.second = nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = torch.utils.checkpoint.checkpoint(
            self.drop, self.first(x), use_reentrant=False, preserve_rng_state=self.keeps_state
        )
        return self.second(again)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("keeps_state", "calls"), [(True, []), (False, ["redrawn"])])
def test_layer_that_drops_again_is_compared_with_its_forward(
    recorder: StepRecorder, tmp_path: Path, keeps_state: bool, calls: list[str]
) -> None:
    training = Training(recorder, Recomputed(keeps_state))
    training.take()
    (step,) = read(recorder, tmp_path).steps
    assert [call.call for call in step.calls] == calls
    assert [call.module for call in step.calls] == ["drop (Dropout)"] * len(calls)


def test_asynchronous_reduction_is_waited_for_before_the_step(recorder: StepRecorder, tmp_path: Path) -> None:
    training = Training(recorder)
    works = [SimpleNamespace(), SimpleNamespace()]
    for work in works:
        record = {"call": "all_reduce", "waited": False}
        recorder.pending.append((work, record))
        recorder.on_call(record)
    recorder.on_waited(works[1])
    training.take()
    (step,) = read(recorder, tmp_path).steps
    assert [call.waited for call in step.calls] == [False, True]
    assert recorder.pending == []


def test_clipping_covers_an_optimizer_if_all_of_its_gradients_are_clipped(recorder: StepRecorder) -> None:
    training = Training(recorder, nn.Linear(2, 1))
    weight, bias = training.model.parameters()
    training.backward()
    assert recorder.objects.clipped([weight, bias]) == {"covers": [0]}
    assert recorder.objects.clipped([weight]) == {"covers": []}
    bias.grad = None
    assert recorder.objects.clipped([weight]) == {"covers": [0]}
    assert recorder.objects.clipped([]) == {"covers": []}


@pytest.mark.parametrize(
    ("step", "updates"), [(torch.tensor(5.0), 5), (5, 5), (None, None), (torch.zeros(3), None), (float("nan"), None)]
)
def test_steps_of_a_restored_optimizer_are_read_where_they_are_one_number(
    recorder: StepRecorder, step: Any, updates: int | None
) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight])
    optimizer.state[weight] = {"step": step}
    assert watched_states._restored(recorder, optimizer, [], "load_optimizer")["updates"] == updates
    assert recorder.is_on


def test_moments_are_those_of_each_parameter() -> None:
    one, other = (nn.Parameter(torch.full((3,), float(value))) for value in (1, 2))
    optimizer = torch.optim.Adam([one, other])
    assert module_facts.moments(optimizer) == [None, None]
    one.grad = torch.ones(3)
    optimizer.step()
    known, missing = module_facts.moments(optimizer)
    assert (known is not None, missing) == (True, None)
    again = torch.optim.Adam([other, one])
    again.load_state_dict({**again.state_dict(), "state": {1: optimizer.state_dict()["state"][0]}})
    assert module_facts.moments(again) == [None, known]


def test_buffers_are_lowered_only_beside_weights_that_are_not() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.register_buffer("angles", torch.ones(2, dtype=torch.bfloat16))
    assert module_facts.lowered_buffers(net) == ["angles"]
    assert module_facts.lowered_buffers(net.to(torch.bfloat16)) == []
