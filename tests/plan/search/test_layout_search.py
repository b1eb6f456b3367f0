"""`frog plan search`: the same numbers as the exact planner, and files that `frog submit` takes."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from harness import LIMIT_S

from frog.cli import main
from frog.core.config import load_run_config
from frog.plan.estimate.adapters import Adapters
from frog.plan.estimate.constants import FITTED
from frog.plan.estimate.hardware import Cluster, clusters
from frog.plan.estimate.layer_time import LayerModel, Passes
from frog.plan.estimate.packing import Packing
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Traits
from frog.plan.memory import USABLE
from frog.plan.model import PlannedModel
from frog.plan.plan_text import layout_words
from frog.plan.search.best import SearchResult, search, what_binds
from frog.plan.search.coarse import KnownLayers, evaluate
from frog.plan.search.files import time_limit
from frog.plan.search.grid import AXES, CHOICES, Grid, divisors, joined, layout_grid
from frog.plan.search.page import front_page

ROOT = Path(__file__).parents[3]
H100 = clusters()["h100x8"]
LLAMA_8B = ROOT / "config" / "llama3_8b.json"
DENSE = PlannedModel(30, 4096, 32, 8, 128, 14336, 128256)
MIXTURE = PlannedModel(
    24, 2048, 16, 4, 128, 8192, 32000, experts=16, experts_per_token=2, expert_ffn=2048, dense_layers=1
)
MIXTURE = replace(MIXTURE, window=1024, windowed_layers=12, layer_norms=4)
MEGATRON = Traits("fused", overlaps_parameters=True, overlaps_tensor=True, overlaps_stages=True)
TORCHTITAN = Traits(keeps_gathered=True, keeps_whole_copy=False, parallel_loss=True, launches_ahead=True)
OLDER = Traits("scores", overlaps_gradients=False, dropout=True)
INTERNEVO = Traits(gradient_bytes=2, step_bytes=14, norm_bytes=4)
FLOAT8 = replace(MEGATRON, overlaps_far_experts=True, loss_bytes=(2, 4))


@pytest.mark.parametrize("cluster", [H100, replace(H100, nodes_per_leaf=2, oversubscription=8.0)], ids=["full", "tree"])
@pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize(
    "traits",
    [MEGATRON, TORCHTITAN, OLDER, INTERNEVO, FLOAT8],
    ids=["megatron", "torchtitan", "older", "internevo", "float8"],
)
def test_coarse_numbers_are_the_exact_ones(model: PlannedModel, traits: Traits, cluster: Cluster) -> None:
    base = Layout(4096, 96, traits=traits, precision="fp8" if traits is FLOAT8 else "bf16")
    grid = layout_grid(model, cluster, 48, base)
    alone = np.flatnonzero((grid.zero == 3) & (grid.dp * grid.cp == 1))
    chosen = grid[np.array([*random.Random(1).sample(range(len(grid)), 60), *alone[:3]])]
    coarse = evaluate(base, chosen, KnownLayers(model, cluster))
    for place in range(len(chosen)):
        layout = chosen.layout(place, base)
        step = StepModel(model, layout, cluster)
        assert layout.problems(model) == []
        assert coarse.step_s[place] == pytest.approx(step.step.total, rel=1e-9), layout
        assert coarse.memory[place] == pytest.approx(step.memory.total, rel=1e-9), layout


def test_numbers_of_a_layout_do_not_depend_on_the_layouts_next_to_it() -> None:
    """Several blocks, the last one not full, whose layouts are shuffled or computed one by one."""
    base = Layout(4096, 96, traits=MEGATRON)
    grid = layout_grid(MIXTURE, H100, 48, base)
    order = np.random.default_rng(1).permutation(len(grid))
    ordered, shuffled = (
        evaluate(base, grid, KnownLayers(MIXTURE, H100)),
        evaluate(base, grid[order], KnownLayers(MIXTURE, H100)),
    )
    assert len(grid) > 16384
    assert len(grid) % 16384
    assert np.array_equal(ordered.step_s[order], shuffled.step_s)
    assert np.array_equal(ordered.memory[order], shuffled.memory)
    for place in (0, 16383, 16384, len(grid) - 1):
        alone = evaluate(base, grid[place : place + 1], KnownLayers(MIXTURE, H100))
        assert (alone.step_s[0], alone.memory[0]) == (ordered.step_s[place], ordered.memory[place])


def test_search_computes_each_kind_of_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense layer depends on tp, cp and the micro-batch, a mixture on its experts' ranks too, neither on all GPUs."""
    kinds, compute = [], LayerModel.layer

    def layer(self: LayerModel, *, mixture: bool) -> Passes:
        layout = self.layout
        experts = (layout.ep, layout.expert_split) if mixture else None
        kinds.append((mixture, layout.tp, layout.cp, layout.micro_batch, experts))
        return compute(self, mixture=mixture)

    base = Layout(4096, 96, traits=MEGATRON)
    grids = [layout_grid(MIXTURE, H100, num_gpus, base) for num_gpus in (48, 24)]
    with monkeypatch.context() as patch:
        patch.setattr(LayerModel, "layer", layer)
        evaluate(base, joined(grids), KnownLayers(MIXTURE, H100))
        assert len(kinds) == len(set(kinds)) > 100
        kinds.clear()
        search(MIXTURE, replace(H100, gpu=replace(H100.gpu, memory=0.0)), [48, 24], base)
        assert len(kinds) == len(set(kinds)) > 100


@pytest.mark.parametrize(
    ("adapters", "packed"), [(Adapters(16), False), (Adapters(16), True), (None, True)], ids=["lora", "both", "packed"]
)
def test_layouts_with_adapters_or_packed_documents_are_those_of_a_plan(adapters: Adapters | None, packed: bool) -> None:
    model, base = DENSE, Layout(4096, 16, traits=MEGATRON)
    if packed:
        model = Packing((300, 900, 2500), 4096).model(model)
    found = search(model, H100, [8], base, (0, 1), axes=("tp", "pp"), adapters=adapters)
    grid = layout_grid(model, H100, 8, base, (0, 1), ("tp", "pp"))
    runs = [PlannedRun(model, grid.layout(place, base), H100, adapters=adapters) for place in range(len(grid))]
    fitting = [run for run in runs if run.step.memory.total <= USABLE * H100.gpu.memory]
    fastest = min(run.step.step.total for run in fitting)
    assert (found.num_layouts, found.num_fitting) == (len(runs), len(fitting))
    assert found.best[0].step_s == pytest.approx(fastest, rel=2e-3)
    assert found.best[0].run.adapters == adapters
    full = search(DENSE, H100, [8], base, (0, 1), axes=("tp", "pp"))
    assert found.best[0].step_s < full.best[0].step_s
    small = replace(H100, gpu=replace(H100.gpu, memory=40 * 2**30))
    roomy = replace(small, gpu=replace(small.gpu, memory=80 * 2**30))
    least, most = (search(model, one, [8], base, (0, 1), FITTED, ("tp",), adapters) for one in (small, roomy))
    if adapters is not None:
        gain = what_binds(least, (0, 1), ("tp",))["the memory of a GPU"]
        assert gain == pytest.approx(1 - most.best[0].step_s / least.best[0].step_s, abs=1e-9)
        assert gain > 0


def all_layouts(model: PlannedModel, num_gpus: int, base: Layout) -> Iterator[Layout]:
    """Yield all layouts of one micro-batch of 1 without a pipeline or cp, with ZeRO 1 among all ranks."""
    for tp in (1, 2, 4, 8):
        one = replace(base, dp=num_gpus // tp, tp=tp, zero=1, sequence_parallel=tp > 1)
        sizes = [(1, None)] if not model.experts else list(product(divisors(model.experts), [None, *divisors(tp)]))
        for ep, expert_tp in sizes:
            split = replace(one, ep=ep, expert_tp=expert_tp)
            yield from (split, replace(split, recompute="full"))
            again = [replace(split, recompute="full", recompute_layers=n) for n in range(1, model.layers)]
            yield from again


def is_small(grid: Grid) -> np.ndarray:
    """Return which layouts `all_layouts` yields."""
    one_by_one = (grid.micro_batch == 1) & (grid.pp == 1) & (grid.cp == 1)
    return one_by_one & (grid.zero == 1) & (grid.zero_group == 0)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "gib"),
    [(DENSE, 36), (DENSE, 44), (MIXTURE, 14), (MIXTURE, 17), (MIXTURE, 20), (MIXTURE, 24)],
    ids=["dense 36", "dense 44", "mixture 14", "mixture 17", "mixture 20", "mixture 24"],
)
def test_search_finds_the_fastest_of_all_layouts(
    model: PlannedModel, gib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search tries all ways to split experts, and to compute any number of layers again."""
    cluster, base = replace(H100, gpu=replace(H100.gpu, memory=gib * 2**30)), Layout(4096, 32, traits=MEGATRON)
    grid = layout_grid(model, cluster, 8, base, (1,))
    monkeypatch.setattr("frog.plan.search.best.layout_grid", lambda *_: grid[is_small(grid)])
    found = search(model, cluster, [8], base, (1,))
    runs = [PlannedRun(model, each, cluster) for each in all_layouts(model, 8, base) if not each.problems(model)]
    fitting = [run for run in runs if run.step.memory.total <= USABLE * cluster.gpu.memory]
    assert found.best[0].step_s == pytest.approx(min(run.step.step.total for run in fitting), rel=2e-3)
    assert found.best[0].memory <= USABLE * cluster.gpu.memory


def test_search_computes_some_layers_again_if_all_are_too_many() -> None:
    cluster, base = replace(H100, gpu=replace(H100.gpu, memory=44 * 2**30)), Layout(8192, 8, traits=TORCHTITAN)
    found, without = (search(DENSE, cluster, [8], base, (3,), axes=axes) for axes in (CHOICES, AXES))
    layout = found.best[0].run.layout
    assert layout.recompute == "full"
    assert layout.recompute_layers is not None
    assert found.best[0].step_s < without.best[0].step_s * 0.99
    assert found.num_layouts > without.num_layouts
    one_less = replace(found.best[0].run, layout=replace(layout, recompute_layers=layout.recompute_layers - 1))
    assert one_less.step.memory.total > USABLE * cluster.gpu.memory
    assert "full recomputation of " in layout_words(found.best[0].run)


@pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("traits", [MEGATRON, TORCHTITAN, INTERNEVO], ids=["megatron", "torchtitan", "internevo"])
def test_coarse_numbers_of_some_layers_are_the_exact_ones(model: PlannedModel, traits: Traits) -> None:
    base = Layout(4096, 96, traits=traits)
    grid = layout_grid(model, H100, 48, base)
    grid = grid[(grid.recompute == 2) & (grid.pp < model.layers)]
    grid = grid[np.array(random.Random(2).sample(range(len(grid)), 60))]
    chunks = -(-model.layers // grid.pp) // grid.virtual_stages
    for asked in (np.ones_like(chunks), np.maximum(1, chunks - 1), chunks):
        some = replace(grid, recompute_layers=asked)
        coarse = evaluate(base, some, KnownLayers(model, H100))
        for place in range(len(some)):
            layout = some.layout(place, base)
            step = StepModel(model, layout, H100)
            assert layout.recompute_layers == asked[place]
            assert coarse.step_s[place] == pytest.approx(step.step.total, rel=1e-9), layout
            assert coarse.memory[place] == pytest.approx(step.memory.total, rel=1e-9), layout


def found_for(num_gpus: int, **changes: object) -> SearchResult:
    base = replace(Layout(4096, 96, traits=MEGATRON), **changes)  # type: ignore[arg-type]
    return search(DENSE, clusters()["h100x8"], [num_gpus, num_gpus // 2], base, (0, 1))


def test_best_layout_is_the_fastest_that_fits() -> None:
    found = found_for(16)
    base, cluster = Layout(4096, 96, traits=MEGATRON), clusters()["h100x8"]
    grid = layout_grid(DENSE, cluster, 16, base, (0, 1))
    exact = [StepModel(DENSE, grid.layout(place, base), cluster) for place in range(0, len(grid), 7)]
    fitting = [step.step.total for step in exact if step.memory.total <= 0.95 * cluster.gpu.memory]
    best = found.best[0]
    assert best.step_s <= min(fitting) * 1.001
    assert best.memory <= 0.95 * cluster.gpu.memory
    assert 0 < found.num_fitting < found.num_layouts
    assert [one.step_s for one in found.best] == sorted(one.step_s for one in found.best)


def test_no_layout_of_the_front_beats_another() -> None:
    front = found_for(16).front
    assert len({one.run.layout.num_gpus for one in front}) == 2
    for one in front:
        assert not any(
            other.step_s <= one.step_s and other.memory <= one.memory and other.gpu_s <= one.gpu_s
            for other in front
            if other is not one
        )


def test_more_of_a_resource_never_makes_the_best_layout_slower() -> None:
    gains = what_binds(found_for(16), (0, 1))
    assert set(gains) >= {"the network", "the memory of a GPU"}
    assert all(-1e-9 <= gain < 0.5 for gain in gains.values())
    assert next(iter(gains)) == "the arithmetic of a GPU"


def test_search_names_the_links_above_oversubscribed_leaf_switches() -> None:
    tree, base = replace(H100, nodes_per_leaf=1, oversubscription=32.0), Layout(4096, 64, traits=OLDER)
    gains = what_binds(search(replace(DENSE, layers=1), tree, [64], base, (0,)), (0,))
    assert gains["the network above leaf switches"] == pytest.approx(gains["the network"])
    assert gains["the network"] > 0.4
    full = search(replace(DENSE, layers=1), H100, [64], base, (0,))
    assert "the network above leaf switches" not in what_binds(full, (0,))


def test_model_that_fits_nowhere_has_no_layout() -> None:
    huge = replace(DENSE, layers=60, hidden=65536, ffn=4 * 65536)
    found = search(huge, clusters()["h100x8"], [8], Layout(4096, 96))
    assert (found.best, found.front, found.num_fitting) == ([], [], 0)
    assert list(found.others()) == []


def test_batch_that_no_rank_can_share_has_no_layout() -> None:
    assert len(layout_grid(DENSE, clusters()["h100x8"], 7 * 11 * 13, Layout(4096, 3))) == 0
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_command_writes_a_run_file_that_submit_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "search", str(LLAMA_8B), "--cluster", "h100x8", "--nodes", "2", "--tokens", "1e9"]
    assert main([*words, "--to", str(tmp_path / "planned")]) == 0
    out = capsys.readouterr().out
    assert "the fastest layout of each mesh" in out
    config = load_run_config(tmp_path / "planned" / "run.toml")
    assert config.world_problems(16) == []
    assert config.train.steps == 239
    assert main(["plan", str(tmp_path / "planned" / "run.toml"), "--cluster", "h100x8", "--nodes", "2"]) == 0
    assert "DOES NOT FIT" not in capsys.readouterr().out
    submit = out.split("submit it: frog ")[-1].split()
    assert main([*submit, "--dry-run"]) == 0
    job = capsys.readouterr().out
    assert "--nodes=2" in job
    step_s = re.search(r"run.toml: .* ([\d.]+) s, ", out)
    assert step_s is not None
    assert f"#SBATCH --time={time_limit(239 * float(step_s[1]))}" in job
    assert (tmp_path / "planned" / "front.html").read_text().count("<circle") > 2


@pytest.mark.parametrize(
    ("hours", "limit"), [(0.5, "0-01:00:00"), (10, "0-11:00:00"), (20, "0-22:00:00"), (100.5, "4-15:00:00")]
)
def test_time_limit_is_a_tenth_longer_than_the_training(hours: float, limit: str) -> None:
    assert time_limit(3600 * hours) == limit


def test_page_draws_each_layout_of_the_front_where_its_time_and_memory_are() -> None:
    found = found_for(16)
    page = front_page(found, "<h100x8>")
    assert "Layouts on &lt;h100x8&gt;" in page
    circles = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)]
    assert len(circles) == page.count("<tr><td>") == len(found.front) > 2
    front = sorted(found.front, key=lambda one: (-one.run.layout.num_gpus, one.step_s))
    for one, (x, y) in zip(front, circles, strict=True):
        others = zip(front, circles, strict=True)
        assert all(x <= far for other, (far, _) in others if one.step_s < other.step_s)
        low, high = _tick(page, "0"), _tick(page, "20")
        assert y == pytest.approx(low + (high - low) * one.memory / 2**30 / 20, abs=0.2)


def _tick(page: str, text: str) -> float:
    """Return the place of a line of the memory's axis, 4 pixels above its text."""
    found = re.search(rf'y="([\d.]+)" text-anchor="end">{text}</text>', page)
    assert found is not None
    return float(found[1]) - 4


def test_page_without_a_layout_has_no_drawing() -> None:
    page = front_page(replace(found_for(16), front=[]), "h100x8")
    assert "<svg" not in page


def test_search_writes_its_files_although_the_output_pipe_is_closed(tmp_path: Path) -> None:
    """The reader closes the pipe, as in `frog plan search … --to DIR | head -1`; `-u` writes each line at once."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["plan", "search", str(LLAMA_8B), "--cluster", "h100x8", "--nodes", "2", "--to", str(tmp_path / "planned")]
    done = subprocess.run([sys.executable, "-u", "-m", "frog.cli", *words], stdout=writing, timeout=LIMIT_S)
    os.close(writing)
    assert done.returncode == 141
    names = {path.name for path in (tmp_path / "planned").iterdir()}
    assert names == {"front.html", "config.json", "megatron.args", "run.toml", "cluster.toml"}


def test_search_takes_the_overlap_of_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        **json.loads(LLAMA_8B.read_text()), "model_type": "mixtral", "num_hidden_layers": 8, "hidden_size": 1024,
        "intermediate_size": 2048, "num_local_experts": 16, "num_experts_per_tok": 4,
    }  # fmt: skip
    (tmp_path / "mixture.json").write_text(json.dumps(config))
    words = ["plan", "search", str(tmp_path / "mixture.json"), "--cluster", "h100x8", "--nodes", "2"]

    def fastest_s(*more: str) -> float:
        assert main([*words, *more]) == 0
        out = capsys.readouterr().out
        rows = [line.split() for line in out.split("the fastest layout of each mesh")[1].splitlines()[2:12]]
        return min(float(row[0]) for row in rows if "ep" in row)

    assert fastest_s() == fastest_s("--overlap-moe", "no")
    assert fastest_s("--overlap-moe", "yes") < fastest_s()
    hai_llm = ["--software", "hai-llm"]
    assert (
        fastest_s(*hai_llm) == fastest_s(*hai_llm, "--overlap-moe", "yes") < fastest_s(*hai_llm, "--overlap-moe", "no")
    )
    assert main([*words, "--overlap-moe", "yes", "--software", "deepspeed"]) == 2
    assert "overlap_moe=yes: this program has no such overlap" in capsys.readouterr().err
    assert main(["plan", "search", str(LLAMA_8B), "--cluster", "h100x8", "--overlap-moe", "yes"]) == 2
    assert "overlap_moe=yes: the model has no experts" in capsys.readouterr().err


def test_price_adds_what_the_training_costs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "search", str(LLAMA_8B), "--cluster", "h100x8", "--nodes", "1", "--price", "2 USD/h"]
    assert main([*words, "--tokens", "1e9"]) == 0
    header, first = capsys.readouterr().out.splitlines()[4:6]
    assert header.split() == ["step", "s", "GiB", "MFU", "%", "GPUs", "days", "USD", "layout"]
    step_s, _, _, gpus, _, money = first.split()[:6]
    steps = -(-(10**9) // (512 * 8192))
    assert float(money.replace(",", "")) == pytest.approx(2 * int(gpus) * steps * float(step_s) / 3600, rel=0.01)
    assert main(words) == 0
    assert "with --tokens, the table also has what the training costs, in USD" in capsys.readouterr().out


def test_experts_overlap_only_with_another_micro_batch() -> None:
    grid = layout_grid(MIXTURE, H100, 16, Layout(4096, 16, traits=replace(MEGATRON, overlaps_experts=True)))
    num_micro = 16 // (grid.dp * grid.micro_batch)
    assert set(num_micro[grid.ep > 1]) == {2, 4, 8, 16}
    assert 1 in num_micro[grid.ep == 1]


def test_search_without_a_fitting_layout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "search", str(LLAMA_8B), "--cluster", "l40sx8", "--gpus", "1"]) == 2
    assert "fits in 95 % of 44.3 GiB on 1 GPUs" in capsys.readouterr().err


def test_search_says_that_no_layout_divides_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(ROOT / "config" / "llama3_8b.json")
    assert main(["plan", "search", model, "--cluster", "h100x8", "--gpus", "49", "--global-batch", "64"]) == 2
    assert "no layout of 49 GPUs divides a global batch of 64" in capsys.readouterr().err


def test_search_refuses_float8_on_a_gpu_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(ROOT / "config" / "llama3_8b.json")
    assert main(["plan", "search", model, "--cluster", "a100x8", "--precision", "fp8"]) == 2
    assert "precision=fp8: A100-80GB has no float8 products" in capsys.readouterr().err


def test_search_overwrites_its_own_files_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "search", str(LLAMA_8B), "--cluster", "h100x8", "--nodes", "2", "--to"]
    mine, planned = tmp_path / "mine", tmp_path / "planned"
    mine.mkdir()
    (mine / "config.json").write_text("{}")
    assert main([*words, str(mine)]) == 2
    assert "config.json would be overwritten" in capsys.readouterr().err
    assert (mine / "config.json").read_text() == "{}"
    assert main([*words, str(mine / "config.json")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main([*words, str(planned)]) == 0
    assert main([*words, str(planned)]) == 0
