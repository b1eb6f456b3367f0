"""Sums of parts add up to those of the whole; what counts as equal; arguments that depend on the number of ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from frog.cli import main
from frog.core.config import StrategyConfig, load_run_config
from frog.core.errors import RunError, UsageError
from frog.observe.check import against_one, rules_against_one
from frog.observe.check.against_one import Against, copies_of
from frog.observe.check.program_arguments import arguments_alone, arguments_for, require_batch_size
from frog.observe.check.rank_records import (
    Backward,
    Call,
    Forward,
    Node,
    Parameter,
    Parameters,
    Place,
    RankRecord,
    Start,
    Step,
    Sums,
)
from frog.observe.check.rule import apply_rules
from frog.observe.check.rules_against_one import RULES_AGAINST_ONE, scope
from frog.observe.hook.frog_observer.checks import module_facts, module_sums

EXACT = 1e-12
SHAPES = [(6,), (6, 5), (6, 5, 4), (6, 5, 4, 3), (6, 5, 4, 3, 2)]


def taken(tensors: list[torch.Tensor], weighs_first: bool = False) -> Sums:
    """Return the record of a module that returned these tensors in a step."""
    sums = module_sums.Sums("Linear")
    for tensor in tensors:
        sums.add(tensor, weighs_first)
    return msgspec.convert(sums.record(), Sums)


def distance(parts: list[Sums], whole: Sums, copies: int = 1) -> float:
    added = against_one._added(parts, copies, whole)
    assert added is not None
    assert whole.square is not None
    return against_one._distance(*added, math.sqrt(whole.square))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("weighs_first", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_along_any_dimension_add_up_to_the_whole(shape: tuple[int, ...], weighs_first: bool) -> None:
    tensor = random(*shape)
    whole = taken([tensor], weighs_first)
    for dimension in range(len(shape)):
        cut = shape[dimension] // 2 + 1  # parts of unequal size: a padded shard
        parts = [taken([part], weighs_first) for part in tensor.split(cut, dimension)]
        assert copies_of(parts, whole) == 1
        assert distance(parts, whole) < EXACT
        # one element of one part
        moved = tensor.clone()
        moved[(0,) * len(shape)] += 0.01
        others = [taken([part], weighs_first) for part in moved.split(cut, dimension)]
        assert distance(others, whole) > 1e-6


def test_elements_that_change_places_in_a_whole_dimension_are_noticed() -> None:
    tensor = random(4, 6, 5)
    swapped = tensor.clone()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert distance([taken([swapped])], taken([tensor])) > 0.01
    assert distance([taken([tensor.flip(0)])], taken([tensor])) < EXACT  # samples may come in any order


def test_micro_batches_and_copies_add_up() -> None:
    tensor = random(8, 3)
    whole = taken([tensor])
    ranks = [taken(list(part.split(2))) for part in tensor.chunk(2)]
    assert ranks[0].calls == 2
    assert (copies_of(ranks, whole), distance(ranks, whole) < EXACT) == (1, True)
    copies = [taken([tensor])] * 3
    assert (copies_of(copies, whole), distance(copies, whole, 3) < EXACT) == (3, True)


def test_calls_of_several_shapes_keep_what_they_have_in_common() -> None:
    varying = taken([random(2, 3, 4), random(2, 5, 4)])
    assert varying.dims == [2, -1, 4]
    assert distance([taken([random(2, 3, 4)]), taken([random(2, 5, 4)])], varying) < EXACT
    assert taken([random(2, 3), random(2, 3, 4)]).sums == pytest.approx(
        [float(random(2, 3).sum() + random(2, 3, 4).sum())]
    )


def test_large_tensor_in_pieces_has_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = taken([random(9, 7)], weighs_first=True)
    monkeypatch.setattr(module_sums, "_MOST_AT_ONCE", 14)
    in_pieces = taken([random(9, 7)], weighs_first=True)
    assert in_pieces.sums == pytest.approx(at_once.sums, rel=1e-12)
    assert in_pieces.square == pytest.approx(at_once.square, rel=1e-12)


def test_number_that_is_not_finite_has_no_sums() -> None:
    assert (taken([torch.tensor([1.0, math.nan])]).sums, taken([torch.tensor([1.0, math.inf])]).square) == (None, None)
    assert module_sums.of_tensors([None, torch.ones(2, device="meta")]) == [None, None]


@pytest.mark.parametrize(
    ("elements", "dims", "expected"),
    [
        ([8, 8], [16], 1),
        ([16, 16], [16], 2),
        ([6, 6, 6], [16], 1),  # a flat tensor, padded by less than a rank
        ([8, 8, 8], [16], None),
        ([10, 8], [4, 4], None),
        ([4], [16], None),
    ],
)
def test_copies_follow_from_the_elements(elements: list[int], dims: list[int], expected: int | None) -> None:
    parts = [Sums(calls=1, dims=[each], elements=each, sums=[0.0], square=0.0) for each in elements]
    assert copies_of(parts, Sums(calls=1, dims=dims, elements=16, sums=[0.0], square=0.0)) == expected


# ---- steps -----------------------------------------------------------------------------------------------------------


def sums(number: float, square: float = 1.0) -> Sums:
    return Sums(calls=1, dims=[4], elements=4, sums=[number], square=square)


def record(*steps: dict[str, Any]) -> RankRecord:
    rank = RankRecord(0, Start(rank=0, world_size=2, every=1), "checks.jsonl")
    base: dict[str, Any] = {"optimizer": 0, "lr": [0.1]}
    for number, step in enumerate(steps, start=1):
        rank.steps.append(Step(**base, step=number, number=number, **step))
    return rank


def compare(many: float, one: float, rounded: float, kind: str = "outputs") -> Against:
    """Compare a step in which two ranks have copies of a tensor of norm 1, known by one sum."""

    def step(number: float) -> dict[str, Any]:
        return {kind: {"layer": sums(number)} if kind == "outputs" else [sums(number)]}

    return against_one.against_one(
        {rank: record(step(many)) for rank in (0, 1)}, record(step(one)), record(step(rounded))
    )


@pytest.mark.parametrize("kind", ["outputs", "gradient_sums", "weight_sums"])
def test_ten_times_what_rounding_changes_is_allowed(kind: str) -> None:
    assert compare(1.0 + 9.9e-5, 1.0, 1.0 + 1e-5, kind).first is None
    assert compare(1.0 + 10.1e-5, 1.0, 1.0 + 1e-5, kind).first is not None
    assert compare(1.0 - 10.1e-5, 1.0, 1.0 + 1e-5, kind).first is not None


def test_weights_at_the_start_must_be_equal_whatever_the_third_run_changed() -> None:
    assert compare(1.0, 1.0, 1.01, "before_sums").first is None
    assert compare(1.0001, 1.0, 1.01, "before_sums").first is not None


def test_what_was_compared_is_said() -> None:
    assert scope(compare(1.0, 1.0, 1.0 + 1e-5, "gradient_sums")) == (
        "Compared with one rank, in 1 step: 1 gradient. The largest difference is 0 % of what rounding allows"
    )
    assert scope(compare(1.0 + 5e-5, 1.0, 1.0 + 1e-5)) == (
        "Compared with one rank, in 1 step: 1 output of modules. The largest difference is 50 % of what rounding allows"
    )
    assert scope(compare(2.0, 1.0, 1.0 + 1e-5)) == "Compared with one rank, in 1 step: 1 output of modules"


def test_comparison_ends_where_rounding_decides() -> None:
    against = compare(3.0, 1.0, 1.1)
    assert (against.first, against.ended) == (None, "in step 1, rounding alone changes layer by 7%")
    assert {answer.why_not for answer in apply_rules(RULES_AGAINST_ONE, against)} == {against.ended}


def test_gradient_that_is_rounding_alone_ends_nothing() -> None:
    def step(noise: float, other: float) -> dict[str, Any]:
        return {"gradient_sums": [sums(1.0, 1.0), sums(noise, 1e-16), sums(other, 1.0)]}

    one, rounded = record(step(1e-8, 1.0)), record(step(-1e-8, 1.00001))
    against = against_one.against_one({rank: record(step(3e-8, 2.0)) for rank in (0, 1)}, one, rounded)
    assert against.first is not None
    assert (against.first.name, against.ended) == ("parameter 2 of the optimizer", "")
    assert against.skipped == {"parameter 1 of the optimizer"}


def test_kind_that_is_left_before_its_end_is_not_said_to_hold() -> None:
    def step(second: float) -> dict[str, Any]:
        return {"outputs": {"first": sums(1.0), "second": sums(second)}}

    against = against_one.against_one(
        {0: record(step(1.0)), 1: record(step(1.0))}, record(step(1.0)), record(step(2.0))
    )
    assert "rounding alone changes second" in against.ended
    assert [answer.held for answer in apply_rules(RULES_AGAINST_ONE, against)] == [False] * 4


@pytest.mark.parametrize(("reduction", "is_named"), [(1, True), (2, False)])
def test_unequal_targets_explain_only_losses_that_are_means(reduction: int, is_named: bool) -> None:
    def step(targets: float, gradient: Sums) -> dict[str, Any]:
        return {"gradient_sums": [gradient], "backwards": [Backward(graph=[Node("NllLoss", reduction, targets)])]}

    ranks = {rank: record(step(4.0 + rank, sums(2.0, 9.0))) for rank in (0, 1)}
    against = against_one.against_one(ranks, record(step(9.0, sums(1.0))), record(step(9.0, sums(1.00001))))
    broken = apply_rules(RULES_AGAINST_ONE, against)[2].broken
    assert broken is not None
    assert ("a mean over its own targets" in broken.finding) is is_named


def forward(*rows: int) -> Forward:
    return Forward(module=0, training=True, grad=True, rows=[*rows])


def test_comparison_ends_if_two_runs_on_one_rank_draw_other_samples() -> None:
    runs = [
        record({"forwards": [forward(rows)], "outputs": {"layer": sums(number)}})
        for rows, number in ((1, 1.0), (1, 1.00001), (2, 1.0))
    ]
    against = against_one.against_one({0: runs[0], 1: runs[0]}, runs[1], runs[2])
    assert "two runs on one rank draw different samples" in against.ended
    assert against_one.against_one({0: runs[0], 1: runs[0]}, runs[0], runs[1]).ended == ""


def test_comparison_ends_if_two_runs_on_one_rank_begin_with_other_weights() -> None:
    against = compare(2.0, 1.0, 2.0, "before_sums")
    assert (against.first, "the program sets its seed too late" in against.ended) == (None, True)


@pytest.mark.parametrize("kind", ["outputs", "gradient_sums", "weight_sums"])
def test_nothing_is_compared_if_the_third_run_changed_nothing(kind: str) -> None:
    against = compare(1.5, 1.0, 1.0, kind)
    assert against.first is None
    assert against.ended == "the third run computed the same numbers: its weights could not be changed"


def test_no_step_is_said() -> None:
    against = against_one.against_one({0: record(), 1: record()}, record(), record())
    assert {answer.why_not for answer in apply_rules(RULES_AGAINST_ONE, against)} == {
        "no optimizer of torch.optim took a step in all runs"
    }


def test_summands_that_are_added_later_equal_the_whole() -> None:
    def runs(first: float, second: float) -> Against:
        ranks = {rank: record({"outputs": {"layer": sums(part)}}) for rank, part in enumerate((first, second))}
        one, rounded = (record({"outputs": {"layer": sums(number)}}) for number in (1.0, 1.00001))
        return against_one.against_one(ranks, one, rounded)

    assert runs(0.25, 0.75).first is None  # the rows of a linear layer, before their sum
    assert runs(1.0, 1.0).first is None  # two copies
    assert runs(0.25, 1.0).first is not None


def test_summands_of_several_copies_equal_the_whole() -> None:
    def runs(*parts: float) -> Against:
        ranks = {rank: record({"outputs": {"layer": sums(part)}}) for rank, part in enumerate(parts)}
        one, rounded = (record({"outputs": {"layer": sums(number)}}) for number in (1.0, 1.00001))
        return against_one.against_one(ranks, one, rounded)

    assert runs(0.25, 0.75, 0.25, 0.75).first is None  # two groups of data ranks, of two tensor ranks each
    assert runs(0.25, 0.75, 0.25, 0.25).first is not None


def test_rounding_in_one_weight_allows_as_much_in_others_and_later() -> None:
    def run(*weights: tuple[float, float], output: float = 1.0) -> RankRecord:
        steps = [{"outputs": {"layer": sums(1.0)}, "weight_sums": [sums(each) for each in weights[0]]}]
        return record(*steps, {"outputs": {"layer": sums(output)}})

    def compared(many: RankRecord) -> Against:
        return against_one.against_one({0: many, 1: many}, run((1.0, 1.0)), run((1.00001, 1.0)))

    assert compared(run((1.0, 1.00009))).first is None  # Adam's step turned in another tensor
    assert compared(run((1.0, 1.00011))).first is not None
    assert compared(run((1.0, 1.0), output=1.00009)).first is None
    assert compared(run((1.0, 1.0), output=1.00011)).first is not None


@pytest.mark.parametrize(("limit", "is_hidden"), [(0.5, True), (3.0, False)])
def test_factor_that_clipping_hides_is_seen_in_the_norm(limit: float, is_hidden: bool) -> None:
    def run(norm: float, gradient: float = 1.0) -> RankRecord:
        return record({"gradient_sums": [sums(gradient)], "calls": [Call(call="clip", norm=norm, limit=limit)]})

    many = run(2.0)
    against = against_one.against_one({0: many, 1: many}, run(1.0), run(1.00001, 1.00001))
    broken = apply_rules(RULES_AGAINST_ONE, against)[2].broken
    assert (broken is not None) is is_hidden
    if broken is not None:
        assert "all gradients are 2 times those of one rank: the number of ranks" in broken.finding
    right = run(1.0)
    assert against_one.against_one({0: right, 1: right}, run(1.0), run(1.00001, 1.00001)).first is None


def test_parts_of_a_flat_optimizer_add_up_to_the_parameter() -> None:
    tensor = random(6, 5)
    whole = taken([tensor], weighs_first=True)
    cut = [((0, 0), tensor[:2]), ((2, 0), tensor[2:3, :4]), ((2, 4), tensor[2:3, 4:]), ((3, 0), tensor[3:])]
    places = [(offset, tuple(tensor.shape)) for offset, _ in cut]
    parts = [msgspec.convert(each, Sums) for each in module_sums.of_tensors([part for _, part in cut], places)]
    first = against_one._together(parts[0], parts[1])  # both parts are on one rank
    assert copies_of([first, *parts[2:]], whole) == 1
    assert distance([first, *parts[2:]], whole) < EXACT
    others = module_sums.of_tensors([part for _, part in cut], [places[0], places[2], places[1], places[3]])
    assert distance([msgspec.convert(each, Sums) for each in others], whole) > 0.01  # shards in another order


def test_frogs_trainer_divides_nothing_on_one_rank() -> None:
    assert arguments_alone(["my.py", "--batch", "{8/world}"]) == ["my.py", "--batch", "8"]
    for words in (["train", "run.toml"], ["-m", "frog.train", "run.toml"]):
        alone = arguments_alone([*words, "--set", "strategy.tp={world}"])
        assert alone[: len(words)] == words
        config = load_run_config(Path("config/demo.toml"), [word for word in alone if word.startswith("strategy.")])
        assert config.strategy == StrategyConfig()


@pytest.mark.parametrize(("second", "is_named"), [(0.7, True), (2.0, False)])
def test_parts_that_nothing_adds_are_named(second: float, is_named: bool) -> None:
    def outputs(rows: float, after: float) -> dict[str, Any]:
        return {"outputs": {"rows": sums(rows), "norm": sums(after)}}

    ranks = {0: record(outputs(0.25, 2.0)), 1: record(outputs(0.75, second))}
    against = against_one.against_one(ranks, record(outputs(1.0, 1.0)), record(outputs(1.00001, 1.00001)))
    broken = apply_rules(RULES_AGAINST_ONE, against)[1].broken
    assert broken is not None
    assert ("of rows before it" in broken.finding) is is_named


def test_gradients_that_differ_by_one_factor_are_told_from_others() -> None:
    def factor(*of: tuple[float, float]) -> float | None:
        found = [against_one._compare("gradient", "", [sums(*each)], sums(1.0), 1e-6) for each in of]
        return rules_against_one._one_factor([each for each in found if each is not None])

    assert factor((2.0, 4.0), (2.0, 4.0)) == pytest.approx(2.0)
    assert factor((2.0, 4.0), (1.0, 1.0)) is None  # two factors
    assert factor((2.0, 4.0), (2.0, 9.0)) is None  # no multiple
    assert factor((-1.0, 1.0)) is None


# ---- modules ---------------------------------------------------------------------------------------------------------


def test_names_are_those_without_wrappers() -> None:
    names = (
        "module.blocks.0._fsdp_wrapped_module.up",
        "_orig_mod.blocks.0.up",
        "blocks.0._checkpoint_wrapped_module.up",
    )
    assert {module_facts.plain_name(name) for name in names} == {"blocks.0.up"}


def test_each_module_is_recorded_once_under_its_own_name() -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._checkpoint_wrapped_module = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._checkpoint_wrapped_module(x)

    net = nn.Sequential(nn.Linear(3, 4), Wrapped(nn.Linear(4, 2)))
    modules = module_sums.ModuleSums("many")
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, out: modules.output(module, out, None))
    modules.begin(0, net)
    before = [each.detach().clone() for each in net.parameters()]
    net(random(5, 3)).sum().backward()
    hook.remove()
    found = modules.take()
    assert list(found["outputs"]) == ["0", "1", "the model"]
    assert list(found["output_gradients"]) == ["1", "the model", "0"]  # the last two are one tensor
    assert found["outputs"]["1"]["class"] == "Linear"
    assert all(map(torch.equal, before, net.parameters()))
    assert modules.take() == {"outputs": {}, "output_gradients": {}}


def test_call_that_no_backward_pass_uses_is_left_out() -> None:
    net = nn.Linear(3, 2)
    modules = module_sums.ModuleSums("many")
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, out: modules.output(module, out, None))
    modules.begin(0, net)
    net(torch.full((7, 3), math.nan))  # as a pipeline that asks for shapes
    net(random(5, 3)).sum().backward()
    with_one = modules.take()["outputs"]["the model"]
    net(random(4, 3))
    net(random(5, 3))
    with_none = modules.take()["outputs"]["the model"]
    hook.remove()
    assert (with_one["calls"], with_one["dims"], with_one["sums"] is not None) == (1, [5, 2], True)
    assert with_none["calls"] == 2


@pytest.mark.parametrize(
    ("dtype", "inputs", "expected"),
    [
        (torch.float32, 16, 4 * 2**-24),
        (torch.float64, 16, 4 * 2**-53),
        (torch.bfloat16, 16, 2**-8),
        (torch.float32, 1, 2**-24),
    ],
)
def test_third_run_changes_each_weight_by_what_rounding_may(dtype: torch.dtype, inputs: int, expected: float) -> None:
    net = nn.Linear(inputs, 64, bias=False, dtype=dtype)
    with torch.no_grad():
        net.weight.fill_(1.0)
    modules = module_sums.ModuleSums("rounded")
    modules.begin(0, net)
    changes = (net.weight.detach().double() - 1).abs()
    assert changes.mean().item() == pytest.approx(expected, rel=0.6)  # the sum is rounded to the weight's type again
    modules.begin(0, net)  # once
    assert torch.equal((net.weight.detach().double() - 1).abs(), changes)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "world", "expected"),
    [
        ("{32/world}", 4, "8"),
        ("--batch-size={32/world}", 1, "--batch-size=32"),
        ("{world}", 4, "4"),
        ("{(world - 1) * 2 + 7 // 2}", 4, "9"),
        ('{"lr": 0.1}', 4, '{"lr": 0.1}'),
        ("{rank}", 4, "{rank}"),
        ("{}", 4, "{}"),
    ],
)
def test_arguments_are_computed_from_the_number_of_ranks(word: str, world: int, expected: str) -> None:
    assert arguments_for(["train.py", word], world) == ["train.py", expected]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("{30/world}", "30/4 is not a whole number with world=4"),
        ("{1/0}", "cannot"),
        ("{2 2}", "cannot"),
        ("{1//0}", "cannot"),
    ],
)
def test_argument_that_cannot_be_computed_is_named(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        arguments_for([word], 4)


@pytest.mark.parametrize(
    "words",
    [
        ["--batch-size", "8"],
        ["--per_device_train_batch_size=8"],
        ["--bs", "8"],
        ["-b", "8"],
        ["--micro-batch-size", "8"],
    ],
)
def test_batch_size_without_its_meaning_is_asked_for(words: list[str]) -> None:
    with pytest.raises(UsageError, match="does each rank take 8 samples, or do all ranks together") as error:
        require_batch_size(["train.py", *words], 4)
    assert "{32/world}" in str(error.value.hint)
    require_batch_size(["train.py", *words, "{8}"], 4)


@pytest.mark.parametrize("words", [["--batch-size", "auto"], ["--batch-sampler", "8"], ["--lr", "8"], []])
def test_other_arguments_are_no_batch_size(words: list[str]) -> None:
    require_batch_size(["train.py", *words], 4)


def test_one_rank_cannot_be_compared_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--nproc", "1", "--against-one", "--", "train.py"]) == 2
    assert "--against-one compares several ranks with one" in capsys.readouterr().err


def test_mistake_in_an_argument_is_said_before_the_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--nproc", "2", "--against-one", "--", "train.py", "{4//(world - 1)}"]) == 2
    said = capsys.readouterr().err
    assert "cannot be computed" in said
    assert "run 1 of 3" not in said


def test_run_whose_companions_are_gone_says_so(tmp_path: Path) -> None:
    assert against_one.read_against(tmp_path) is None
    folders = {name: str(tmp_path / name) for name in ("many", "one", "rounded")}
    (tmp_path / "against_one.json").write_text(json.dumps(folders))
    with pytest.raises(RunError, match="no records of the run on one rank"):
        against_one.read_against(tmp_path)


@pytest.mark.parametrize("own_line", [True, False])
def test_reduction_of_the_users_is_named_if_a_library_runs_backward(own_line: bool) -> None:
    place, reduction = Place("train.py", 5, "main"), Place("mine.py", 9, "reduce")

    def run(gradient: float) -> RankRecord:
        calls = [Call(call="all_reduce", line=reduction)]
        backwards = [Backward(line=place if own_line else None)]
        return record({"gradient_sums": [sums(gradient, gradient**2)], "calls": calls, "backwards": backwards})

    against = against_one.against_one({0: run(2.0), 1: run(2.0)}, run(1.0), run(1.00001))
    broken = apply_rules(RULES_AGAINST_ONE, against)[2].broken
    assert broken is not None
    assert broken.line == (place if own_line else reduction)


@pytest.mark.parametrize("is_changed_before", [False, True])
def test_reduction_that_takes_a_wrong_gradient_is_named(is_changed_before: bool) -> None:
    reduction, place = Place("mine.py", 9, "reduce"), Place("mine.py", 7, "train")
    named = Parameter(names=["w"], module=0, shape=[4], dtype="float32", trained=True)

    def run(gradient: float) -> RankRecord:
        calls = [Call(call="all_reduce", line=reduction, entered=4 if is_changed_before else 3)]
        backwards = [Backward(line=place, bits={0: [3, 5]})]
        both = [sums(gradient, gradient**2), sums(1.0)]  # one of two agrees: no factor between all
        made = record({"gradient_sums": both, "calls": calls, "backwards": backwards})
        other = Parameter(names=["v"], module=0, shape=[4], dtype="float32", trained=True)
        made.tables[0] = Parameters(optimizer=0, name="SGD", parameters=[named, other])
        return made

    against = against_one.against_one({0: run(2.0), 1: run(2.0)}, run(1.0), run(1.00001))
    broken = apply_rules(RULES_AGAINST_ONE, against)[2].broken
    assert broken is not None
    assert broken.line == (place if is_changed_before else reduction)


@pytest.mark.parametrize("seed", [5, 6])
def test_seeds_of_the_ranks_explain_another_start(seed: int) -> None:
    made, seeded = Place("mine.py", 3, "main"), Place("mine.py", 2, "main")

    def run(number: float, own: int) -> RankRecord:
        each = record({"before_sums": [sums(number)], "weight_sums": [sums(number)]})
        parameter = Parameter(
            names=["w"], module=0, shape=[4], dtype="float32", trained=True, made=made, seed=(own, seeded)
        )
        each.tables[0] = Parameters(optimizer=0, name="SGD", parameters=[parameter])
        return each

    many = {0: run(2.0, 5), 1: run(2.0, seed)}
    broken = apply_rules(RULES_AGAINST_ONE, against_one.against_one(many, run(1.0, 5), run(1.00001, 5)))[0].broken
    assert broken is not None
    assert broken.line == (made if seed == 5 else seeded)
