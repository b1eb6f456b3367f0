"""The step time of a run on a measured machine, and its comparison with the events of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_machine_costs import calibration

from frog.cli import main
from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig, load_run_config
from frog.core.errors import ConfigError
from frog.plan.links import SlowNetwork, payload_rate
from frog.plan.machine.measured import Row, comparison_lines, prediction_lines
from frog.plan.machine.step import OPTIMIZE, PASSES, PHASES, REDUCE, PhaseTime, predict_step, step_time

ROOT = Path(__file__).parents[3]
CONFIG = RunConfig(
    model=ModelConfig(512, 64, 128, 4, 4, 4, 64),
    data=DataConfig(sequence_length=32),
    train=TrainConfig(global_batch_size=16),
)
MACHINE = calibration(cores=4).machine


def with_strategy(**fields: object) -> RunConfig:
    return replace(CONFIG, strategy=StrategyConfig(**fields))  # type: ignore[arg-type]


def test_one_rank_computes_only() -> None:
    phases = predict_step(CONFIG, 1, MACHINE)
    assert all(phase.communicating_s == 0 for phase in phases.values())
    layers = CONFIG.model.num_hidden_layers * MACHINE.worlds[1].layer["fp32"].fixed_s
    assert phases[PASSES].computing_s > layers


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"name": "ddp"}, [REDUCE]),
        ({"name": "zero1"}, [REDUCE, OPTIMIZE]),
        ({"name": "zero2"}, [PASSES, REDUCE, OPTIMIZE]),
        ({"name": "zero3"}, [PASSES, REDUCE, OPTIMIZE]),
        ({"tp": 2}, [PASSES, REDUCE, OPTIMIZE]),
        ({"cp": 2}, [PASSES, REDUCE]),
        ({"pp": 2}, [PASSES, REDUCE, OPTIMIZE]),
    ],
)
def test_strategy_communicates_in_its_phases(fields: dict[str, object], where: list[str]) -> None:
    config = with_strategy(**fields)
    if fields.get("pp"):
        config = replace(config, train=replace(config.train, grad_accum=4))
    phases = predict_step(config, 2, replace(MACHINE, cores=2))
    assert [name for name in PHASES if phases[name].communicating_s > 0] == where


def test_parameters_are_gathered_after_the_update() -> None:
    sharded = [predict_step(with_strategy(name=name), 2, replace(MACHINE, cores=2)) for name in ("zero1", "zero2")]
    norm_s = predict_step(with_strategy(name="zero3"), 2, MACHINE)[OPTIMIZE].communicating_s
    assert all(phases[OPTIMIZE].communicating_s > 2 * norm_s for phases in sharded)


@pytest.mark.parametrize(("sequence_parallel", "op"), [(True, "sequence"), (False, "tensor")])
def test_tensor_parallelism_costs_what_its_functions_cost(sequence_parallel: bool, op: str) -> None:
    config = with_strategy(tp=2, sequence_parallel=sequence_parallel)
    costs = MACHINE.worlds[2]
    slower = replace(costs, links={**costs.links, op: costs.links[op] * 3})
    once, thrice = (
        predict_step(config, 2, replace(MACHINE, worlds={**MACHINE.worlds, 2: own}))[PASSES].communicating_s
        for own in (costs, slower)
    )
    assert 2 * once < thrice <= 3 * once


def test_slow_network_adds_what_its_delay_and_rate_make_of_each_collective() -> None:
    config, machine = with_strategy(name="zero1"), replace(MACHINE, cores=2)
    delay_s, rate = 0.02, 1e7
    fast = predict_step(config, 2, machine)
    slow = predict_step(config, 2, machine, SlowNetwork((0, 1), delay_s, rate))
    more_s = {name: slow[name].total_s - fast[name].total_s for name in PHASES}
    gradient_s = 4 * config.model.num_parameters() / 2 / rate
    assert more_s == pytest.approx(
        # In gloo a message takes two delays: one to scatter gradients or gather parameters, two to agree on the loss,
        # one on the norm.
        {PASSES: 0, REDUCE: 2 * delay_s + gradient_s + 4 * delay_s, OPTIMIZE: 2 * delay_s + gradient_s + 2 * delay_s},
        rel=0.01,
    )


def test_two_units_of_zero2_share_the_delays_of_a_slow_network() -> None:
    config, machine = with_strategy(name="zero2"), replace(MACHINE, cores=2)
    near, far = (predict_step(config, 2, machine, SlowNetwork((0, 1), delay_s, 1e12)) for delay_s in (0.0, 1.0))
    # Five units, of which two are gathered at a time: three messages; and one to agree on the norm.
    assert far[OPTIMIZE].total_s - near[OPTIMIZE].total_s == pytest.approx(2 * (3 + 1))


def test_slow_network_costs_nothing_inside_a_node() -> None:
    config, machine = with_strategy(tp=2), replace(MACHINE, cores=4)
    inside, between = (SlowNetwork(nodes, 0.02, 1e7) for nodes in ((0, 0, 1, 1), (0, 1, 0, 1)))
    assert predict_step(config, 4, machine, inside)[PASSES] == predict_step(config, 4, machine)[PASSES]
    assert predict_step(config, 4, machine, between)[PASSES].communicating_s > 32 * 2 * 0.02


def test_bytes_in_a_slow_network_need_no_core() -> None:
    config, machine = with_strategy(name="zero2"), replace(MACHINE, cores=2)
    near, far = (predict_step(config, 2, machine, SlowNetwork((0, 1), 1e-6, rate)) for rate in (1e12, 1e9))
    assert near[PASSES].total_s == pytest.approx(far[PASSES].total_s)


def test_free_cores_hide_overlapped_communication() -> None:
    config = with_strategy(name="zero2")
    tight, free = (predict_step(config, 2, replace(MACHINE, cores=cores)) for cores in (2, 4))
    assert free[PASSES].communicating_s == pytest.approx(0)
    assert tight[PASSES].computing_s == free[PASSES].computing_s


def test_twice_the_micro_batches_take_twice_as_long() -> None:
    once = predict_step(CONFIG, 2, MACHINE)[PASSES].computing_s
    doubled = replace(CONFIG, train=replace(CONFIG.train, global_batch_size=32, grad_accum=2))
    assert predict_step(doubled, 2, MACHINE)[PASSES].computing_s == pytest.approx(2 * once)


def test_pipeline_waits_if_each_rank_has_a_core() -> None:
    config = replace(with_strategy(pp=2), train=replace(CONFIG.train, grad_accum=2))
    own, shared = (predict_step(config, 2, replace(MACHINE, cores=cores))[PASSES].computing_s for cores in (2, 1))
    # The costs are equal, so they are those of a rank with half a core: it has a whole one in the other's bubble.
    assert shared == pytest.approx(own / 1.5)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(CONFIG, train=replace(CONFIG.train, precision="bf16")), "train.precision='bf16': measured are fp32"),
        (replace(CONFIG, train=replace(CONFIG.train, compile=True)), "train.compile: only eager"),
        (with_strategy(tp=3), "num_attention_heads=4"),
    ],
)
def test_run_that_no_cost_covers_gets_the_reason(config: RunConfig, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        predict_step(config, 3 if config.strategy.tp == 3 else 2, MACHINE)
    assert said in str(caught.value)


def test_plan_of_a_run_file_uses_the_profile_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_file = str(ROOT / "config" / "demo.toml")
    assert main(["plan", run_file]) == 2
    assert "no machine.toml in this folder" in capsys.readouterr().err
    (tmp_path / "machine.toml").write_text(calibration().text)
    assert main(["plan", run_file, "--nproc", "2"]) == 0
    out = capsys.readouterr().out
    assert "measured on a test's machine" in out
    assert all(name in out for name in PHASES)
    assert main(["plan", run_file, "--tp", "2"]) == 2
    assert "machine.toml is a measured machine: --tp" in capsys.readouterr().err


def test_planned_network_is_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("machine.toml").write_text(calibration().text)
    words = ["plan", str(ROOT / "config" / "demo.toml"), "--nodes", "2x1", "--json"]
    assert main([*words, "--network", "rate=100mbit delay=20ms"]) == 0
    slow = json.loads(capsys.readouterr().out)
    assert main(words) == 0
    fast = json.loads(capsys.readouterr().out)
    config, machine = load_run_config(ROOT / "config" / "demo.toml"), calibration().machine
    network = SlowNetwork((0, 1), 0.02, payload_rate(1e8, 9000))
    assert slow["step_s"] == pytest.approx(step_time(predict_step(config, 2, machine, network)))
    assert fast["step_s"] == pytest.approx(step_time(predict_step(config, 2, machine)))
    assert slow["step_s"] > fast["step_s"] + 2 * 0.02


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2", "--network", "rate=100mbit"], "several nodes with a number of ranks"),
        (["--nodes", "1x2", "--network", "rate=100mbit"], "several nodes with a number of ranks"),
        (["--nodes", "2x1", "--network", "rate=slow"], "rate=slow"),
        (["--nodes", "2x1", "--network", "rate=100mbit loss=1%"], "lost frames"),
        (["--cluster", "h100x8", "--network", "rate=100mbit"], "h100x8 is not a measured machine"),
        (["--cluster", "h100x8", "--nodes", "2x4"], "h100x8 states the GPUs of a node: 8"),
    ],
)
def test_network_without_simulated_nodes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("machine.toml").write_text(calibration().text)
    assert main(["plan", str(ROOT / "config" / "demo.toml"), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("ax1", "expected NODESxRANKS"),
        ("1:2x1", "a fixed number of nodes"),
        ("many", "invalid int"),
        ("0", "at least 1"),
    ],
)
def test_wrong_number_of_nodes_is_refused(capsys: pytest.CaptureFixture[str], nodes: str, said: str) -> None:
    with pytest.raises(SystemExit):
        main(["plan", str(ROOT / "config" / "demo.toml"), "--nodes", nodes])
    assert said in capsys.readouterr().err


# ---- every number of the prediction, to nine digits ------------------------------------------------------------------

KEPT = Path(__file__).with_name("machine_steps.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
CHECKPOINTED = replace(CONFIG, train=replace(CONFIG.train, activation_checkpointing=True))
MICROS = replace(CONFIG, train=replace(CONFIG.train, grad_accum=4))
FAR = SlowNetwork((0, 0, 1, 1), 0.002, 1e8)
RUNS: dict[str, tuple[RunConfig, dict[str, object], SlowNetwork | None]] = {
    "ddp": (CONFIG, {"name": "ddp"}, None),
    "ddp, buckets": (CONFIG, {"name": "ddp", "bucket_mb": 0.1}, None),
    "ddp, overlapped": (CONFIG, {"name": "ddp", "bucket_mb": 0.1, "reduction": "overlapped"}, None),
    "ddp, naive, far": (CONFIG, {"name": "ddp", "reduction": "naive"}, FAR),
    "zero1": (CONFIG, {"name": "zero1"}, None),
    "zero2, micro-batches": (MICROS, {"name": "zero2"}, None),
    "zero2, far": (CONFIG, {"name": "zero2"}, FAR),
    "zero3": (MICROS, {"name": "zero3"}, None),
    "zero3, hybrid": (CONFIG, {"name": "zero3", "shard": 2}, None),
    "diloco": (CONFIG, {"name": "diloco", "inner_steps": 5}, FAR),
    "tensor": (CHECKPOINTED, {"tp": 4}, None),
    "tensor, whole stream": (CONFIG, {"tp": 2, "sequence_parallel": False}, None),
    "context": (CONFIG, {"cp": 2}, FAR),
    "pipeline": (MICROS, {"pp": 4}, FAR),
    "pipeline, tied, zero1": (MICROS, {"pp": 2, "name": "zero1", "schedule": "zero_bubble"}, None),
    "all": (MICROS, {"pp": 2, "tp": 2}, FAR),
}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, list[list[float]]]]:
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in RUNS]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.parametrize("name", RUNS)
def test_no_number_of_a_predicted_step_changes_unnoticed(name: str, kept: dict[str, list[list[float]]]) -> None:
    """Computing and communicating in each phase. After a change that is meant: FROG_REWRITE_GOLDEN=1."""
    config, strategy, network = RUNS[name]
    config = replace(config, strategy=StrategyConfig(**strategy))  # type: ignore[arg-type]
    phases = predict_step(config, 4, replace(MACHINE, cores=5), network)
    found = [[float(f"{seconds:.9g}") for seconds in vars(phases[phase]).values()] for phase in PHASES]
    if REWRITE:
        kept[name] = found
    assert [number for pair in found for number in pair] == pytest.approx(
        [number for pair in kept[name] for number in pair], rel=1e-8
    )


def test_prediction_is_printed_in_milliseconds_with_its_sum() -> None:
    phases = {PASSES: PhaseTime(0.0123, 0.001), REDUCE: PhaseTime(0.0, 0.00204), OPTIMIZE: PhaseTime(0.005, 0.0)}
    assert list(prediction_lines(phases)) == [
        "step time by phase, ms         computing  communicating     total",
        "  forward, backward                 12.3            1.0      13.3",
        "  reduce                             0.0            2.0       2.0",
        "  optimize                           5.0            0.0       5.0",
        "  step                              17.3            3.0      20.3",
    ]


def test_comparison_is_printed_with_the_error_of_each_phase() -> None:
    rows = [Row("reduce", 0.0123, 0.01), Row("optimize", 0.005, 0.01), Row("data, events", None, 0.002)]
    assert list(comparison_lines([*rows, Row("step", 0.0, 0.01), Row("none", 0.01, 0.0)])) == [
        "step time by phase, ms         predicted    measured     error",
        "  reduce                            12.3        10.0      +23%",
        "  optimize                           5.0        10.0      -50%",
        "  data, events                         -         2.0",
        "  step                               0.0        10.0",
        "  none                              10.0         0.0",
    ]
