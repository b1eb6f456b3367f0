"""Samples that no epoch has, metrics that ranks mix or add, and weights that are not those of the file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from check_records import step
from observe.check.test_rules_on_records import W, at, check
from torch import nn

from frog.observe.check.rank_records import Place
from frog.observe.check.read_sums import read_sum
from frog.observe.hook.frog_observer.checks.loaded_weights import LoadedWeights
from frog.observe.hook.frog_observer.checks.program_objects import ProgramObjects

Lines = list[dict[str, Any]]
STEPS = [W, *map(step, range(1, 7))]


# ---- samples ---------------------------------------------------------------------------------------------------------


def epochs(*rows: list[list[int]], samples: int, batches: int = 2, **changes: Any) -> Lines:
    """Return steps, and a DataLoader with the samples of each batch of each epoch. A step follows each batch."""
    lines, taken = [*STEPS], 0
    for number, epoch in enumerate(rows):
        loader = {"sampler": "DistributedSampler", "distributed": True, "samples": samples, "batches": batches}
        lines.append({"kind": "loader", "loader": 0, "iteration": number, "line": at(9), **loader, **changes})
        for place, batch in enumerate(epoch):
            own = {"step": taken, "loader": 0, "iteration": number, "batch": place, "rows": batch}
            lines.append({"kind": "batch", **own})
            taken += 1
    return lines


UNKNOWN = "no DataLoader of all ranks that trains, and that tells how many batches it has, was read"
ONE, OTHER = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
MIXED, REST = [[8, 3], [6, 1]], [[2, 4], [5, 7]]
FILE = {"sampler": "SequentialSampler", "distributed": False, "size": 2}
BATCH_SAMPLER = {**FILE, "size": None}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (STEPS, STEPS, UNKNOWN),
        (epochs(ONE, samples=8), epochs(OTHER, samples=8), None),
        (epochs(ONE, samples=11), epochs(OTHER, samples=11), ("possible", 1, (0, 1), 9, "3 of the 11", "no batch")),
        (
            epochs(ONE, MIXED, samples=99),
            epochs(OTHER, REST, samples=99),
            ("possible", 3, (0, 1), 9, "91 of the 99", "no epoch", "same 8 each time"),
        ),
        (epochs(ONE, [[1, 9], [3, 4]], samples=99), epochs(OTHER, REST, samples=99), None),  # the order changes
        (epochs(ONE, samples=11, **BATCH_SAMPLER), epochs(OTHER, samples=11, **BATCH_SAMPLER), None),
        (epochs(ONE, samples=99, shuffle=True), epochs(OTHER, samples=99, shuffle=True), None),
        (epochs(ONE, ONE, samples=99, sampler="SubsetRandomSampler"), epochs(OTHER, OTHER, samples=99), None),
        (epochs(ONE, samples=99, batches=9), epochs(OTHER, samples=99, batches=9), None),  # stopped in the first epoch
        (
            epochs(ONE, ONE, samples=40, batches=5, **FILE),
            epochs(OTHER, OTHER, samples=4, **FILE),
            ("likely", None, (0,), 9, "has 5 batches", "leaves 3", "never used"),
        ),
        (epochs(ONE, ONE, samples=12, batches=3, **FILE), epochs(OTHER, OTHER, samples=4, **FILE), None),
    ],
)
def test_rule_on_samples_that_no_epoch_has(tmp_path: Path, ours: Lines, theirs: Lines, expected: Any) -> None:
    check(tmp_path, "left-out", [ours, theirs], expected)


def evaluates(rows: list[list[int]], samples: int) -> Lines:
    """Return steps, and the batches that are drawn one after the other once they are done."""
    lines = epochs(rows, samples=samples)
    return [{**line, "step": 6} if line["kind"] == "batch" else line for line in lines]


def test_rule_on_samples_that_an_evaluation_leaves_out(tmp_path: Path) -> None:
    found = ("possible", None, (0, 1), 9, "the evaluation at train.py:9 (main) leaves out 3 of 11 samples")
    check(tmp_path, "left-out", [evaluates(ONE, 11), evaluates(OTHER, 11)], found)
    check(tmp_path, "left-out", [evaluates(ONE, 8), evaluates(OTHER, 8)], None)
    check(tmp_path, "left-out", [evaluates(ONE[:1], 9), STEPS], UNKNOWN)  # a look at one batch
    check(tmp_path, "left-out", [evaluates(ONE, 4), STEPS], None)  # one rank evaluates all samples


# ---- metrics ---------------------------------------------------------------------------------------------------------


def reduces(*calls: dict[str, Any], line: Any = None) -> Lines:
    """Return a second step that begins with reductions of one element."""
    usual = {"call": "all_reduce", "line": line or at(12), "elements": 1}
    return [W, step(1), step(2, calls=[{**usual, **call} for call in calls])]


def named(*names: str) -> Lines:
    return reduces(*({"named": {"name": name, "old": "far"}} for name in names))


NO_METRICS = "no reduction of a mapping's few values over all ranks was seen"
STACKED = [{"elements": 2, "orders": [["far", "near"]]}, {"elements": 2, "orders": [["near", "far"]]}]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (STEPS, STEPS, NO_METRICS),
        (named("near", "far"), named("near", "far"), None),
        (named("near", "far"), named("far", "near"), ("likely", 2, (0, 1), 12, "rank 0 near, far", "rank 1 far, near")),
        (named("of rank 0", "far"), named("of rank 1", "far"), None),
        (named("near"), named("far", "near"), NO_METRICS),
        (reduces(STACKED[0]), reduces(STACKED[1]), ("likely", 2, (0, 1), 12, "rank 0 far, near")),
        (reduces(STACKED[0]), reduces(STACKED[0]), None),
    ],
)
def test_rule_on_metrics_in_another_order(tmp_path: Path, ours: Lines, theirs: Lines, expected: Any) -> None:
    check(tmp_path, "metrics", [ours, theirs], expected)


TRAINS = "loss = criterion(net(x), y)\ndist.all_reduce(loss)\n"
HELPER = "def total(value):\n    dist.all_reduce(value)\n    return value\n"
PAIR = "def both():\n    return total(losses.avg), 1\n"
NO_SUM = "the program adds no number of the ranks' own that is not a count"


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        (TRAINS + "print(loss.item())", 2, (3, False, True)),
        (TRAINS + "if loss < best:\n    best = loss", 2, (3, True, True)),
        (TRAINS + "loss /= world\nprint(loss)", 2, None),
        (TRAINS + "print(loss.item() / world)", 2, None),
        (TRAINS + "mean = loss.item()\nmean = mean / 2\nprint(mean)", 2, None),
        (TRAINS + "mean = loss.item()\nlog(f'{mean:.3f}')", 2, (4, False, True)),
        (TRAINS + "history.append(loss.item())", 2, None),  # what is done with it is not known
        (TRAINS + "x = 1", 2, None),
        (TRAINS + "loss.backward()", 2, None),
        ("norm = g.pow(2).sum()\ndist.all_reduce(norm)\nprint(norm.sqrt())", 2, None),
        ("dist.all_reduce(tokens)\nprint(tokens.item())", 1, (2, False, False)),
        ("shown = fabric.all_reduce(loss)\nprint(shown)", 1, (2, False, False)),
        (HELPER + "print(total(a.mean()))", 2, (4, False, True)),
        (HELPER + "print(total(a.mean()) / 4)", 2, None),
        (HELPER + "scheduler.step(total(loss_fn(a, b)))", 2, (4, True, True)),
        ("count += 1\nt = torch.tensor(s / count)\ndist.all_reduce(t)\nprint(t)", 3, (4, False, True)),
        ("n += 1\ndist.all_reduce(n)\nt = s / n\ndist.all_reduce(t)\nprint(t)", 4, (5, False, False)),
        ("t = s / len(loader)\ndist.all_reduce(t)\nprint(t)", 2, (3, False, True)),
        ("t = s / len(loader.dataset)\ndist.all_reduce(t)\nprint(t)", 2, (3, False, False)),  # all ranks' samples
        (HELPER + PAIR + "loss, share = both()\nif loss < best:\n    best = loss", 2, (7, True, True)),
        (HELPER + PAIR + "loss, share = both()\nprint(loss / 4)", 2, None),
        (HELPER + PAIR + "print(both()[0])", 2, None),
        (
            "def total(value):\n    value = torch.tensor(value)\n    dist.all_reduce(value)\n    return value\n"
            "print(total(losses.avg))",
            3,
            (5, False, True),
        ),
        ("x = (", 1, None),
    ],
)
def test_reading_of_a_sum_that_nothing_divides(tmp_path: Path, source: str, line: int, expected: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    found = read_sum(Place(str(script), line, ""))
    assert (found and (found.place.line, found.decides, found.is_mean)) == expected


def summed(script: Path, value: float, loss: float = 9.0) -> Lines:
    mean = {"line": at(8), "graph": [["MeanBackward0", None, None, None]], "loss": loss}
    line = [str(script), 2, ""]
    first, second = step(1, backwards=[mean]), step(2, calls=[{"call": "all_reduce", "line": line, "value": value}])
    return [W, first, second]


def test_rule_on_a_sum_of_means(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS + "print(loss.item())")
    found = ("possible", 2, (0, 1), 2, "adds a mean of each of 2 ranks", "shows the sum at train.py:3")
    check(tmp_path, "means", [summed(script, 0.5), summed(script, 0.75)], found)
    found = ("likely", 2, (0, 1), 2, "adds the loss, a mean, of each of 2 ranks")
    check(tmp_path, "means", [summed(script, 0.5, 0.5), summed(script, 0.75, 0.75)], found)
    check(tmp_path, "means", [summed(script, 3.0), summed(script, 4.0)], NO_SUM)
    check(tmp_path, "means", [summed(script, 0.5), summed(script, 0.5)], NO_SUM)
    script = tmp_path / "divides.py"
    script.write_text(TRAINS + "print(loss.item() / 2)")
    check(tmp_path, "means", [summed(script, 0.5, 0.5), summed(script, 0.75, 0.75)], None)


# ---- loads -----------------------------------------------------------------------------------------------------------


class Loads:
    """A model, another one of its kind, and a file with weights."""

    def __init__(self) -> None:
        self.net, self.other, saved = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3))
        self.file = {f"module.{name}": each.clone() for name, each in saved.state_dict().items()}
        self.state = {name.removeprefix("module."): each for name, each in self.file.items()}
        self.objects = ProgramObjects(lambda line: None)
        self.loads = LoadedWeights(self.objects)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.objects.optimizers.number(self.optimizer)
        self.objects.root(self.net)
        self.loads.on_file({"epoch": 3, "model": self.file})

    def load(self, module: nn.Module, state: dict[str, torch.Tensor]) -> dict[str, Any]:
        before = self.loads.before_load(module)
        module.load_state_dict(state)
        return self.loads.after_load(module, before, at(4))


def test_load_that_is_trained_is_followed() -> None:
    case = Loads()
    assert case.load(case.net, case.state) == {}
    assert case.loads.at_step() == [{"call": "loaded", "line": at(4), "lost": [], "part": 0.0}]
    assert case.loads.at_step() == []


def test_weights_that_are_drawn_after_the_load_are_lost() -> None:
    case = Loads()
    case.load(case.net, case.state)
    for each in case.net.parameters():
        nn.init.normal_(each)
        case.objects.on_drawn(each, at(7))
    (found,) = case.loads.at_step()
    assert (found["call"], found["line"], found["part"], len(found["lost"])) == ("loaded", at(7), 1.0, 4)


def test_a_second_load_explains_what_changed_since_the_first() -> None:
    case = Loads()
    case.load(case.net, case.state)
    case.load(case.net, case.other.state_dict())
    assert [each["part"] for each in case.loads.at_step()] == [0.0, 0.0]


def test_a_copy_that_was_loaded_does_not_train() -> None:
    case = Loads()
    case.load(case.other, case.state)
    (found,) = case.loads.at_step()
    assert (found["call"], found["part"], found["gone"]) == ("loaded_aside", 1.0, False)
    case.load(copy.deepcopy(case.other), case.state)
    assert [each["gone"] for each in case.loads.at_step()] == [True]
    case.load(case.other, case.state)
    case.load(case.net, case.state)  # both are loaded: a copy that goes along
    assert [each["part"] for each in case.loads.at_step()] == [0.0, 0.0]
    case.objects.root(case.other)  # a teacher, which is called
    case.net.load_state_dict(case.other.state_dict())
    case.load(case.other, case.state)
    assert case.loads.at_step() == []


def test_a_load_with_nothing_of_the_file_is_told() -> None:
    case = Loads()
    assert case.load(case.net, case.net.state_dict())["ignored"] == ["0.bias", "0.weight", "1.bias", "1.weight"]
    case.load(case.net, case.state)
    assert case.load(case.net, case.net.state_dict()) == {}
    case = Loads()
    case.loads.at_step()  # what was read before training has gone on says nothing of what is loaded later
    assert case.load(case.net, case.net.state_dict()) == {}


def test_numbers_under_other_names_are_told() -> None:
    case = Loads()
    exchanged = {name.replace("0", "x").replace("1", "0").replace("x", "1"): each for name, each in case.state.items()}
    assert ["0.weight", "1.weight"] in case.load(case.net, exchanged)["moved"]


LOAD = {"call": "load_model", "line": at(4)}
NAMES = ["a.weight", "b.weight"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({}, None),
        ({"ignored": NAMES}, ("likely", 2, (0,), 4, "changes nothing", "a.weight")),
        ({"ignored": NAMES, "missing": ["a.weight"]}, None),  # the rule `keys` says it
        ({"moved": [["a", "b"], ["b", "a"]]}, ("likely", 2, (0,), 4, "gives a the numbers", "for b", "1 more")),
        ({"call": "loaded", "part": 1.0, "lost": NAMES}, ("likely", 2, (0,), 4, "written over them")),
        ({"call": "loaded", "part": 0.2, "lost": NAMES}, None),  # a new head
        ({"call": "loaded_aside", "part": 1.0, "lost": NAMES}, ("possible", 2, (0,), 4, "neither trains")),
        ({"call": "loaded_aside", "part": 1.0, "gone": True}, ("likely", 2, (0,), 4, "no longer exists")),
    ],
)
def test_rule_on_weights_that_are_loaded(tmp_path: Path, call: dict[str, Any], expected: Any) -> None:
    check(tmp_path, "loaded", [[W, step(1), step(2, calls=[{**LOAD, **call}])]], expected)
