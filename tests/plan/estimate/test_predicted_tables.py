"""`frog plan predict`: rows of a table become predictions, or reasons."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frog.cli import main
from frog.core.errors import ConfigError
from frog.plan.estimate.predict import COLUMNS, predict_row, predict_rows
from frog.plan.estimate.programs import traits_of
from frog.plan.estimate.rows import read_row
from frog.plan.model import PlannedModel

ROW = {
    "row_id": "one",
    "year": "2024",
    "gpu": "H100-80GB",
    "n_gpus": "64",
    "layers": "80",
    "hidden": "8192",
    "heads": "64",
    "kv_heads": "8",
    "ffn": "28672",
    "gated_ffn": "yes",
    "vocab": "128256",
    "seq_len": "8192",
    "global_batch": "256",
    "micro_batch": "1",
    "dp": "2",
    "tp": "4",
    "pp": "8",
    "virtual_stages": "5",
    "zero": "1",
    "seq_parallel": "yes",
    "recompute": "selective",
    "precision": "fp8",
    "inter_node_gbit_s": "3200",
    "software": "Megatron-Bridge 25.09",
    "scope": "step",
}


def test_complete_row_is_predicted_with_a_range() -> None:
    prediction = predict_row(ROW)
    assert prediction.step_time_s == pytest.approx(20.1, rel=0.15)  # published: 19.99 to 20.21 s
    _, step, memory, low, high, why = prediction.cells()
    assert float(low) < float(step) < float(high)
    assert 30 < float(memory) < 80
    assert why == ""
    assert predict_row({**ROW, "virtual_stages": "4"}).why.startswith("80 layers do not divide by pp 8 x 4 virtual")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": ""}, "not stated: hidden"),
        ({"tp": "3"}, "dp x tp x pp x cp = 48 is not n_gpus=64"),
        ({"gpu": "TPUv4"}, "gpu='TPUv4': no profile of this GPU"),
        ({"precision": "fp6"}, "precision='fp6' is not modelled"),
        ({"precision": "nvfp4"}, "precision=nvfp4: H100-80GB has no NVFP4 products, which Blackwell GPUs have"),
        ({"precision": "mxfp8"}, "precision=mxfp8: H100-80GB has no MXFP8 products, which Blackwell GPUs have"),
        ({"arch": "hybrid"}, "layers other than attention are not modelled"),
        ({"layers": "many"}, "layers='many': must be a number"),
        ({"layers": "0"}, "must be at least 1"),
        ({"recompute": "some"}, "recompute='some': must be none, selective or full"),
        ({"task": "lora"}, "a table has no columns for adapters"),
        ({"global_batch": "255"}, "global_batch=255 does not divide by dp=2 x micro_batch=1"),
        ({"zero": "fsdp"}, "zero='fsdp': must be a number"),
        ({"zero": "1.5"}, "zero=1.5: must be a whole number"),
        ({"zero": "4"}, "zero=4: must be 0 to 3"),
        ({"micro_batch": "1.5"}, "micro_batch=1.5: must be a whole number"),
        ({"gated_ffn": "swiglu"}, "gated_ffn='swiglu': must be yes or no"),
        ({"seq_parallel": "on"}, "seq_parallel='on': must be yes or no"),
        ({"gpus_per_node": "0"}, "gpus_per_node=0: must be at least 1"),
        ({"inter_node_gbit_s": "0"}, "inter_node_gbit_s=0: must be above 0 with several nodes"),
        ({"nodes_per_leaf": "4"}, "oversubscription is missing: nodes_per_leaf needs it"),
        ({"oversubscription": "2"}, "nodes_per_leaf is missing: oversubscription needs it"),
        ({"nodes_per_leaf": "0", "oversubscription": "2"}, "nodes_per_leaf=0: must be a whole number of at least 1"),
        ({"nodes_per_leaf": "1.5", "oversubscription": "2"}, "nodes_per_leaf=1.5: must be a whole number"),
        (
            {"nodes_per_leaf": "4", "oversubscription": "0.5"},
            "oversubscription=0.5: must be a number of at least 1",
        ),
        ({"heads": "61"}, "heads=61 do not divide by tp=4"),
        ({"ep": "8"}, "ep=8: the model has no experts"),
        ({"gpu": "A100-80GB"}, "precision=fp8: A100-80GB has no float8 products"),
    ],
)
def test_row_that_cannot_be_predicted_gives_the_reason(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_row({**ROW, **changes})
    assert reason in str(raised.value)


def test_row_without_degrees_is_data_parallel_and_says_so() -> None:
    row = {**ROW, "dp": "", "tp": "", "pp": "", "virtual_stages": "", "schedule": "", "gpu": "H100-80GB"}
    run = read_row(row)
    assert (run.layout.dp, run.layout.tp, run.layout.pp) == (64, 1, 1)
    assert "dp=64" in run.assumed
    assert not any(
        each.startswith("dp=") for each in read_row({**row, "tp": "2"}).assumed
    )  # the docs say that it follows


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ROW)),
        st.one_of(
            st.sampled_from(["", "0", "-1", "1", "3", "nan", "inf", "1e400", "1e30", "999999999", "yes", "full", "x"]),
            st.text(max_size=8),
        ),
        max_size=4,
    )
)
def test_any_cells_give_a_finite_prediction_or_a_reason(changes: dict[str, str]) -> None:
    (prediction,) = predict_rows([{**ROW, **changes}])
    if prediction.step_time_s is None:
        assert prediction.why
    else:
        assert 0 < prediction.step_time_s < math.inf


def test_what_is_not_stated_is_assumed_and_named() -> None:
    run = read_row({**ROW, "micro_batch": "", "inter_node_gbit_s": "", "recompute": ""})
    assert set(run.assumed) == {"micro_batch=1", "inter_node_gbit_s=3200", "recompute=selective"}


@pytest.mark.parametrize(
    "changes",
    [
        {"zero": "1.0", "layers": "80.0", "n_gpus": " 64 "},
        {"gpu": " H100-80GB "},
        {"gated_ffn": "Yes", "seq_parallel": "TRUE", "precision": "FP8", "recompute": "Selective"},
        {"zero_group": "ALL", "tied_embeddings": "False"},
    ],
)
def test_cells_as_spreadsheets_and_people_write_them_mean_the_same(changes: dict[str, str]) -> None:
    assert predict_row({**ROW, **changes}) == predict_row(ROW)


def test_bandwidth_of_the_network_keeps_its_fraction() -> None:
    assert read_row({**ROW, "inter_node_gbit_s": "12.5"}).cluster.node_bandwidth == 12.5e9 / 8


@pytest.mark.parametrize(
    ("software", "assumed"),
    [
        ("MaxText", ("software: unknown, planned like DeepSpeed",)),
        ("", ("software=DeepSpeed",)),
        ("DeepSpeed 0.14", ()),
        ("llm-foundry (PyTorch FSDP)", ()),
    ],
)
def test_unknown_program_is_planned_like_deepspeed_and_named(software: str, assumed: tuple[str, ...]) -> None:
    assert read_row({**ROW, "software": software}).assumed == assumed


def test_memory_of_a_gpu_may_stand_in_its_own_column() -> None:
    row = {**ROW, "gpu": "A100", "precision": "bf16"}
    assert read_row({**row, "gpu_mem_gb": "40"}).cluster.gpu.name == "A100-40GB"
    assert read_row(row).cluster.gpu.name == "A100-80GB"


def test_older_programs_keep_scores_and_newer_ones_overlap() -> None:
    assert traits_of({"software": "Megatron-LM", "year": "2022"}).attention == "scores"
    assert traits_of({"software": "NeMo 24.07", "year": "2024"}).overlaps_tensor
    assert not traits_of({"software": "torchtitan", "year": "2025"}).overlaps_tensor
    assert traits_of({"software": "torchtitan (async TP)", "year": "2025"}).overlaps_tensor


def test_gradients_travel_as_the_program_stores_them() -> None:
    sizes = {
        name: traits_of({"software": name}).gradient_bytes for name in ("NeMo", "Megatron-Bridge", "Megatron-Core")
    }
    assert sizes == {"NeMo": 2, "Megatron-Bridge": 2, "Megatron-Core": 4}


@pytest.mark.parametrize(
    ("changes", "chunks"),
    [
        ({}, 2),
        ({"schedule": "1f1b"}, 1),
        ({"software": "DeepSpeed"}, 1),
        ({"software": "DeepSpeed", "schedule": "interleaved"}, 2),
        ({"layers": "72"}, 1),  # 16 chunks would differ
        ({"pp": "1", "dp": "16"}, 1),
    ],
)
def test_megatron_s_pipeline_without_a_schedule_is_interleaved(changes: dict[str, str], chunks: int) -> None:
    run = read_row({**ROW, "virtual_stages": "", **changes})
    assert run.layout.virtual_stages == chunks
    assert ("virtual_stages=2" in run.assumed) == (chunks == 2)


EXPERTS = {"experts": "64", "experts_per_token": "8", "expert_ffn": "2048", "ep": "8"}


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [
        ({}, False),
        ({"overlap_moe": "yes"}, True),
        ({"software": "HAI-LLM"}, True),
        ({"software": "HAI-LLM", "overlap_moe": "no"}, False),
    ],
)
def test_experts_overlap_where_the_row_or_its_program_says_so(changes: dict[str, str], overlaps: bool) -> None:
    traits = read_row({**ROW, **EXPERTS, **changes}).layout.traits
    assert traits.overlaps_experts is overlaps
    assert traits.dispatches_fp8 is ("software" in changes), "only DeepSeek's program sends float8"


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [({}, True), ({"overlap_moe": "no"}, False), ({"arch_notes": "token drop"}, False), ({"software": "NeMo"}, False)],
)
def test_bridge_s_recipes_overlap_experts_of_several_nodes(changes: dict[str, str], overlaps: bool) -> None:
    traits = read_row({**ROW, **EXPERTS, "software": "Megatron-Bridge 25.11", **changes}).layout.traits
    assert traits.overlaps_far_experts is overlaps
    assert not traits.overlaps_experts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"overlap_moe": "some"}, "overlap_moe='some': must be yes or no"),
        ({"overlap_moe": "yes", "software": "DeepSpeed"}, "overlap_moe=yes: this program has no such overlap"),
        ({"overlap_moe": "yes", "ep": "1"}, "overlap_moe=yes: ep=1 sends no tokens"),
        ({"overlap_moe": "yes", "global_batch": "2"}, "overlap_moe=yes: needs two micro-batches"),
    ],
)
def test_overlap_of_experts_that_no_run_has_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_row({**ROW, **EXPERTS, **changes})
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("", "1f1b"),
        ("interleaved 1f1b", "1f1b"),
        ("GPipe", "gpipe"),
        ("ZB-H1", "zero_bubble"),
        ("DualPipe", "zero_bubble"),
    ],
)
def test_schedules_are_known_by_their_usual_names(words: str, schedule: str) -> None:
    assert read_row({**ROW, "schedule": words}).layout.schedule == schedule


def test_latent_attention_of_the_notes_is_modelled() -> None:
    notes = "MLA attention (q_lora 1536, kv_lora 512, qk 128+64, v 128); first 3 layers dense"
    shape = {"layers": "61", "hidden": "7168", "heads": "128", "kv_heads": "", "ffn": "18432", "vocab": "129280"}
    mixture = {"experts": "256", "experts_per_token": "8", "shared_experts": "1", "expert_ffn": "2048"}
    run = read_row({**ROW, **shape, **mixture, "arch_notes": notes, "pp": "8", "virtual_stages": "1"})
    assert run.model.num_parameters() == 671_026_404_352


def test_columns_of_a_mixture_are_its_model_and_layout() -> None:
    notes = "first 2 layers dense, multi-token-prediction"
    shape = {"head_dim": "128", "tied_embeddings": "yes", "experts": "16", "experts_per_token": "3", "ep": "4"}
    more = {"shared_experts": "2", "expert_ffn": "1000", "arch_notes": notes, "zero": "2", "zero_group": "8", "cp": "2"}
    run = read_row({**ROW, **shape, **more, "pp": "4", "virtual_stages": "", "model": "DeepSeek-V9"})
    assert run.model == PlannedModel(
        layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256, gated=True, tied=True,
        biases=False, positions=0, experts=16, experts_per_token=3, shared_experts=2, expert_ffn=1000, expert_groups=4,
        dense_layers=2, prediction_layers=1,
    )  # fmt: skip
    layout = run.layout
    assert (layout.seq_len, layout.global_batch, layout.micro_batch, layout.precision) == (8192, 256, 1, "fp8")
    assert (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.virtual_stages) == (2, 4, 4, 2, 4, 2)
    assert (layout.zero, layout.zero_group, layout.sequence_parallel) == (2, 8, True)
    assert run.assumed == ("virtual_stages=2", "expert_tp=1")


def test_plain_model_needs_few_columns() -> None:
    known = ("row_id", "gpu", "n_gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "inter_node_gbit_s")
    run = read_row({**{name: ROW[name] for name in known}, "year": "2021", "dp": "64", "tp": "1", "pp": "1"})
    assert run.model == PlannedModel(
        layers=80, hidden=8192, heads=64, kv_heads=64, head_dim=128, ffn=32768, vocab=50304, gated=False, tied=False,
        biases=True, positions=8192, experts=0, experts_per_token=0, shared_experts=0, expert_ffn=0, expert_groups=0,
        dense_layers=0, prediction_layers=0,
    )  # fmt: skip
    layout = run.layout
    assert (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.virtual_stages) == (64, 1, 1, 1, 1, 1)
    assert (layout.micro_batch, layout.zero, layout.zero_group, layout.sequence_parallel) == (4, 1, 0, False)
    words = " ".join(run.assumed)
    for word in ("vocab=50304", "micro_batch=4", "zero=1", "software=DeepSpeed", "seq_parallel=no"):
        assert word in words


@pytest.mark.parametrize(
    ("changes", "micro_batch"),
    [
        ({"pp": "1", "dp": "16", "global_batch": "48"}, 1),  # 3 for each rank
        ({"pp": "1", "dp": "16", "global_batch": "32"}, 2),
        ({"pp": "1", "dp": "16", "global_batch": "128"}, 4),
        ({}, 1),
        ({"software": "torchtitan"}, 16),  # 128 for each rank, 8 stages
    ],
)
def test_micro_batch_that_is_not_stated_is_the_usual_one(changes: dict[str, str], micro_batch: int) -> None:
    row = {**ROW, "micro_batch": "", "virtual_stages": "1", **changes}
    assert read_row(row).layout.micro_batch == micro_batch


def test_vocabulary_that_is_not_stated_is_assumed_and_named() -> None:
    run = read_row({**ROW, "vocab": ""})
    assert (run.model.vocab, run.assumed[0]) == (50_304, "vocab=50304")
    assert predict_row({**ROW, "vocab": ""}).why.startswith("assumed vocab=50304")
    assert not any("vocab" in word for word in read_row(ROW).assumed)


@pytest.mark.parametrize(
    ("notes", "window", "windowed"),
    [
        ("sliding window 128 in every second layer", 128, 40),
        ("sliding-window attention of 4096", 4096, 80),
        ("sliding-window attention (window not stated)", 0, 0),
    ],
)
def test_window_of_the_notes_is_modelled(notes: str, window: int, windowed: int) -> None:
    model = read_row({**ROW, "arch_notes": notes}).model
    assert (model.layers, model.window, model.windowed_layers) == (80, window, windowed)


def test_command_writes_a_row_for_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "runs.csv", tmp_path / "predicted.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerow(ROW)
        writer.writerow({**ROW, "row_id": "two", "heads": ""})
    assert main(["plan", "predict", str(table), "--to", str(out)]) == 0
    assert "predicted 1 of 2 rows" in capsys.readouterr().out
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row[0] for row in rows[1:]] == ["one", "two"]
    assert rows[2][1:] == ["", "", "", "", "not stated: heads"]
    assert main(["plan", "predict", str(table)]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_table_of_a_spreadsheet_has_a_mark_and_lines_inside_of_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, [*ROW, "notes"])
        writer.writeheader()
        writer.writerow({**ROW, "row_id": "a, b", "notes": "one\ntwo \x85 \u2028 three"})
    assert main(["plan", "predict", str(path)]) == 0
    _, row = csv.reader(capsys.readouterr().out.splitlines())
    assert row == predict_row({**ROW, "row_id": "a, b"}).cells()


def test_row_may_describe_a_fat_tree() -> None:
    row = {**ROW, "pp": "1", "virtual_stages": "", "dp": "16"}
    tree = {**row, "nodes_per_leaf": "2", "oversubscription": "4"}
    cluster = read_row(row).cluster
    assert read_row(tree).cluster == replace(cluster, nodes_per_leaf=2, oversubscription=4.0)
    assert read_row({**tree, "oversubscription": "1"}).step.step.total == read_row(row).step.step.total
    assert read_row(tree).step.step.total > read_row(row).step.step.total


@pytest.mark.parametrize("command", ["predict", "fit"])
@pytest.mark.parametrize("text", ['[\n{"row_id": "a"},\n{"row_', ' {"row_id": "a"}'])
def test_table_in_json_is_refused(command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text)
    assert main(["plan", command, str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}: no rows with a column row_id" in said
    assert "; it looks like JSON, not CSV" in said


def test_table_without_row_id_names_its_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("row_id;gpu\none;H100-80GB\n")
    assert main(["plan", "predict", str(path)]) == 2
    assert "no rows with a column row_id; its columns: row_id;gpu" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", None])
def test_wrong_table_is_refused(content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    if content is not None:
        path.write_bytes(content)
    assert main(["plan", "predict", str(path)]) == 2
    assert "try: name a CSV file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "milliseconds"),
    [("no", "none", 19.6), ("yes", "none", 19.0), ("no", "full", 27.2), ("yes", "selective", 20.3)],
)
def test_one_layer_takes_as_long_as_korthikanti_measured(
    sequence_parallel: str, recompute: str, milliseconds: float
) -> None:
    """Korthikanti et al. 2022, table 4: a layer of the 22B model on 8 A100, forward and backward."""
    shape = {"layers": "48", "hidden": "6144", "heads": "64", "kv_heads": "", "ffn": "", "gated_ffn": "no"}
    batch = {"n_gpus": "8", "dp": "1", "tp": "8", "pp": "1", "virtual_stages": "", "global_batch": "4"}
    row = {**ROW, **shape, **batch, "micro_batch": "4", "seq_len": "2048", "vocab": "51200", "precision": "fp16"}
    row |= {"gpu": "A100-80GB", "year": "2022", "software": "Megatron-LM", "scope": "layer"}
    row |= {"seq_parallel": sequence_parallel, "recompute": recompute}
    assert predict_row(row).step_time_s == pytest.approx(milliseconds / 1e3, rel=0.09)


def test_file_that_is_no_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "config.json"
    table.write_text('{\n  "model_type": "llama", "layers": [1, 2]\n}\n')
    assert main(["plan", "predict", str(table)]) == 2
    assert "no rows with a column row_id; its columns: {" in capsys.readouterr().err
