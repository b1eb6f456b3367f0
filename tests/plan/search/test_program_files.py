"""The files that `frog plan search --to` writes for other programs, read by these programs where they are installed."""

from __future__ import annotations

import argparse
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog.cli import main
from frog.plan.estimate.adapters import Adapters
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.requests import SOFTWARE, base_layout, zeros_of
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.sources import read_named_model
from frog.plan.layout import Layout
from frog.plan.search.best import Candidate, search
from frog.plan.search.program_files import PROGRAM_FILES, NotExpressibleError, ProgramFiles, axes_of, program_files

ROOT = Path(__file__).parents[3]
PARSED = json.loads(Path(__file__).with_name("parsed_options.json").read_text())
"""Options that torchtitan's and Megatron-LM's own parsers accepted, by program and version."""
H100 = clusters()["h100x8"]
LLAMA = ROOT / "config" / "llama3_8b.json"
MIXTURE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}


def best(software: str, model: Path, num_gpus: int = 64, **changes: Any) -> tuple[Candidate, dict[str, Any]]:
    """Return the fastest layout that a program's options can state, perhaps changed, and the config.json."""
    named = read_named_model(str(model))
    base, name = base_layout(named, {"software": software, "seq_len": "4096"})
    found = search(named.model, H100, [num_gpus], base, zeros_of(name), axes=axes_of(name) or ())
    first = next(found.others())
    layout = replace(first.run.layout, **changes)
    assert named.config is not None
    return replace(first, run=PlannedRun(named.model, layout, H100)), dict(named.config)


def written(software: str, model: Path = LLAMA, **changes: Any) -> tuple[Layout, ProgramFiles]:
    candidate, config = best(software, model, **changes)
    files = program_files(SOFTWARE[software], candidate, config, Path("planned"), 1000, "h100x8")
    assert set(files.texts) <= set(PROGRAM_FILES)
    return candidate.run.layout, files


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    (tmp_path / "mixture.json").write_text(json.dumps(MIXTURE))
    return tmp_path / "mixture.json"


SPLIT = {"dp": 4, "tp": 4, "pp": 4, "cp": 1, "virtual_stages": 2, "micro_batch": 2, "sequence_parallel": True}
GROUPS = {"dp": 32, "tp": 2, "pp": 1, "cp": 1, "virtual_stages": 1, "micro_batch": 1, "zero_group": 8}
CONTEXT = {"dp": 16, "tp": 2, "pp": 1, "cp": 2, "virtual_stages": 1, "micro_batch": 1}
EXPERTS = {"dp": 32, "pp": 2, "tp": 1, "cp": 1, "ep": 8, "virtual_stages": 2, "micro_batch": 2}
AGAIN = {"dp": 64, "tp": 1, "pp": 1, "cp": 1, "virtual_stages": 1, "micro_batch": 4, "recompute": "full"}


SPLIT_EXPERTS = {**EXPERTS, "dp": 16, "tp": 2, "ep": 8, "expert_tp": 2, "sequence_parallel": True}


CASES = {"best": {}, "split": SPLIT, "groups": GROUPS, "cp": CONTEXT, "ep": EXPERTS, "full": AGAIN}
CASES["expert tp"] = SPLIT_EXPERTS


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_torchtitan_divides_all_gpus_and_the_batch(mixture: Path, changes: dict[str, Any]) -> None:
    layout, files = written("torchtitan", mixture if "ep" in changes else LLAMA, **changes)
    table = tomllib.loads(files.texts["torchtitan.toml"])
    known = set(PARSED["torchtitan 0.2.2"])
    assert {f"{section}.{name}" for section, values in table.items() for name in values} <= known
    axes, training = table["parallelism"], table["training"]
    replicas, shards = axes["data_parallel_replicate_degree"], axes["data_parallel_shard_degree"]
    others = axes["tensor_parallel_degree"] * axes["context_parallel_degree"] * axes["pipeline_parallel_degree"]
    assert replicas * shards * others == layout.num_gpus == 64
    assert shards * axes["context_parallel_degree"] == layout.shard
    assert training["global_batch_size"] == layout.global_batch
    micro_batches = training["global_batch_size"] // (replicas * shards) // layout.micro_batch
    if layout.pp > 1:
        assert training["local_batch_size"] // axes["pipeline_parallel_microbatch_size"] == micro_batches
        stages = 1 if axes["pipeline_parallel_schedule"] == "1F1B" else layout.virtual_stages
        layers = 48 if "ep" in changes else 32
        assert axes["pipeline_parallel_layers_per_stage"] * stages * layout.pp == layers
    else:
        assert training["local_batch_size"] == layout.micro_batch
    assert axes.get("expert_parallel_degree", 1) == layout.ep
    assert axes.get("expert_tensor_parallel_degree", 1) == (layout.expert_split if layout.ep > 1 else 1)
    assert table["activation_checkpoint"]["mode"] == ("full" if layout.recompute == "full" else "none")


@pytest.mark.parametrize("changes", [{}, SPLIT, AGAIN], ids=["best", "split", "full"])
def test_torchtitans_function_sets_what_the_file_says(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the function on a configuration that takes any name, since torchtitan 0.3 needs a nightly build of torch."""
    _, files = written("torchtitan", **changes)
    lines = [line for line in files.texts["torchtitan_run.py"].splitlines() if not line.startswith("from ")]
    config = argparse.Namespace(
        training=argparse.Namespace(), parallelism=argparse.Namespace(), compile=argparse.Namespace()
    )
    full = argparse.Namespace(Config=lambda: "full")
    values: dict[str, Any] = {"llama3_8b": lambda: config, "FullAC": full}
    exec("\n".join(lines), values)
    values["planned"]()
    table = tomllib.loads(files.texts["torchtitan.toml"])
    assert vars(config.parallelism) == table["parallelism"]
    training = vars(config.training)
    assert training.pop("disable_cuda_graphs", False) is (table["parallelism"]["pipeline_parallel_degree"] > 1)
    assert training == {name: value for name, value in table["training"].items() if name != "dataset"}
    assert (config.activation_checkpoint == "full") is (table["activation_checkpoint"]["mode"] == "full")
    names = {
        f"{part}.{name}" for part in ("training", "parallelism", "compile") for name in vars(getattr(config, part))
    }
    assert names <= set(PARSED["torchtitan 0.3.0"])


def options_of(text: str) -> dict[str, str]:
    lines = [line.split() for line in text.splitlines()]
    return {words[0].removeprefix("--"): words[1] if len(words) > 1 else "" for words in lines}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_megatron_gets_known_options_of_the_layout(mixture: Path, changes: dict[str, Any]) -> None:
    layout, files = written("megatron", mixture if "ep" in changes else LLAMA, **changes)
    options = options_of(files.texts["megatron.args"])
    assert set(options) <= set(PARSED["Megatron-LM of 2026-08-22"])
    sizes = {
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
        "expert-model-parallel-size": layout.ep,
        "num-virtual-stages-per-pipeline-rank": layout.virtual_stages,
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.global_batch,
        "num-distributed-optimizer-instances": layout.data // layout.shard,
    }
    assert {name: int(options.get(name, 1)) for name in sizes} == sizes
    assert ("use-distributed-optimizer" in options) is (layout.zero > 0)
    assert ("sequence-parallel" in options) is layout.sequence_parallel
    assert options.get("recompute-granularity", "none") == layout.recompute
    assert ("num-experts" in options) is ("ep" in changes)
    assert int(options.get("expert-tensor-parallel-size", layout.tp)) == layout.expert_split
    assert files.command.startswith("env CUDA_DEVICE_MAX_CONNECTIONS=1 ") is (layout.tp > 1)


@pytest.mark.parametrize(
    ("layers", "expected"), [(None, {"method": "uniform", "num": "1"}), (5, {"method": "block", "num": "5"})]
)
def test_megatron_computes_some_layers_of_each_chunk_again(layers: int | None, expected: dict[str, str]) -> None:
    changes = {**SPLIT, "recompute": "full", "recompute_layers": layers}
    options = options_of(written("megatron", **changes)[1].texts["megatron.args"])
    values = dict(
        line.split("=") for line in written("megatron-bridge", **changes)[1].texts["bridge.args"].splitlines()
    )
    assert options["recompute-granularity"] == values["model.recompute_granularity"] == "full"
    assert options["recompute-method"] == values["model.recompute_method"] == expected["method"]
    assert options["recompute-num-layers"] == values["model.recompute_num_layers"] == expected["num"]


def test_experts_that_are_whole_without_ep_are_stated(mixture: Path) -> None:
    """Megatron splits experts as tp splits the rest, if nothing else is stated."""
    changes = {**SPLIT, "ep": 1, "expert_tp": 1, "virtual_stages": 1, "micro_batch": 1}
    options = options_of(written("megatron", mixture, **changes)[1].texts["megatron.args"])
    assert options["expert-tensor-parallel-size"] == "1"
    assert "expert-model-parallel-size" not in options


def test_torchtitan_03_cannot_split_experts_next_to_ep(mixture: Path) -> None:
    _, files = written("torchtitan", mixture, **SPLIT_EXPERTS)
    assert set(files.texts) == {"torchtitan.toml"}
    assert "--job.config_file" in files.command


def test_bridge_gets_the_same_sizes() -> None:
    layout, files = written("megatron-bridge", **SPLIT)
    values = dict(line.split("=") for line in files.texts["bridge.args"].splitlines())
    assert values["model.tensor_model_parallel_size"] == "4"
    assert values["model.virtual_pipeline_model_parallel_size"] == "2"
    assert values["model.sequence_parallel"] == "true"
    assert values["train.global_batch_size"] == str(layout.global_batch)
    assert values["model.recompute_granularity"] == "null"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("changes", [{}, {"zero": 1, "precision": "fp16"}], ids=["best", "zero1"])
def test_deepspeed_reads_its_file(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deepspeed = pytest.importorskip("deepspeed.runtime.config")
    layout, files = written("deepspeed", **changes)
    (tmp_path / "deepspeed.json").write_text(files.texts["deepspeed.json"])
    monkeypatch.setattr(deepspeed.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(deepspeed.dist, "get_world_size", lambda: 64)
    read = deepspeed.DeepSpeedConfig(str(tmp_path / "deepspeed.json"))
    assert read.train_micro_batch_size_per_gpu == layout.micro_batch
    assert read.gradient_accumulation_steps == layout.num_micro
    assert read.zero_optimization_stage == layout.zero
    assert read.bfloat16_config.enabled is (layout.precision == "bf16")
    assert read.float16_config.enabled is (layout.precision == "fp16")


def test_trainer_reads_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    layout, files = written("trainer", recompute="full")
    (tmp_path / "trainer.json").write_text(files.texts["trainer.json"])
    parser = transformers.HfArgumentParser((transformers.TrainingArguments,))
    (read,) = parser.parse_json_file(tmp_path / "trainer.json")
    assert read.per_device_train_batch_size == layout.micro_batch
    assert read.gradient_accumulation_steps == layout.num_micro
    assert read.max_steps == 1000
    plugin = read.fsdp_plugin_args
    assert plugin["fsdp_version"] == 2
    assert plugin["activation_checkpointing"] is True
    assert plugin["reshard_after_forward"] is True
    assert plugin["transformer_cls_names_to_wrap"] == "LlamaDecoderLayer"


def test_accelerates_variables_are_those_of_its_own_launcher(tmp_path: Path) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils.launch import prepare_multi_gpu_env

    _, files = written("accelerate", recompute="full")
    (tmp_path / "accelerate.yaml").write_text(files.texts["accelerate.yaml"])
    words = ["--config_file", str(tmp_path / "accelerate.yaml"), "my.py"]
    args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    assert args.num_processes == 64
    theirs = prepare_multi_gpu_env(args)
    ours = dict(line.split("=") for line in files.texts["accelerate.env"].splitlines())
    assert {name: theirs[name] for name in ours} == ours


@pytest.mark.parametrize(
    ("software", "changes", "why"),
    [
        ("deepspeed", {"zero_group": 8}, "states among all ranks"),
        ("trainer", {"zero_group": 8}, "share states among all ranks"),
        ("accelerate", {"precision": "fp8"}, "no float8"),
        ("trainer", {"dp": 32, "tp": 2}, "has no option for dp 32 x tp 2"),
        ("megatron", {"precision": "fp8_rowwise"}, "a scale for each row"),
        ("megatron", {"precision": "nvfp4"}, "Megatron's options for nvfp4"),
        ("torchtitan", {"precision": "mxfp8"}, "torchtitan's options for mxfp8"),
        ("trainer", {"precision": "mxfp8"}, "no mxfp8"),
        ("torchtitan", {"dp": 32, "cp": 2, "tp": 1, "pp": 1, "zero_group": 1}, "whole groups of context parallelism"),
        ("torchtitan", {**AGAIN, "recompute_layers": 4}, "has no option for .* of 4 layers"),
    ],
)
def test_layout_without_options_says_why(software: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(NotExpressibleError, match=why):
        written(software, **changes)


@pytest.mark.parametrize("changes", [{"ep": 4, "expert_tp": 2}, {"ep": 1, "expert_tp": 1}], ids=["part", "no ep"])
def test_torchtitan_splits_experts_over_tp_or_not(changes: dict[str, Any], mixture: Path) -> None:
    layout = {**EXPERTS, "dp": 16, "tp": 4, "pp": 1, "virtual_stages": 1, "sequence_parallel": True}
    with pytest.raises(NotExpressibleError, match="torchtitan splits an expert over all ranks of tp"):
        written("torchtitan", mixture, **{**layout, **changes})


@pytest.mark.parametrize("software", ["megatron", "torchtitan"])
def test_unknown_model_says_so(software: str, mixture: Path) -> None:
    mixture.write_text(json.dumps({**MIXTURE, "model_type": "olmoe", "hidden_size": 1024}))
    with pytest.raises(NotExpressibleError, match=r"no configuration of|does not know Megatron's options"):
        written(software, mixture)


@pytest.mark.parametrize("software", ["torchtitan", "deepspeed", "trainer", "accelerate", "megatron"])
def test_printed_command_renders_a_job_without_traps(
    software: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my.py", "pretrain_gpt.py"):
        (tmp_path / name).touch()
    search_words = ["plan", "search", str(LLAMA), "--cluster", "h100x8", "--nodes", "2", "--to", "planned"]
    assert main([*search_words, "--software", software]) == 0
    lines = capsys.readouterr().out.splitlines()
    (place,) = [place for place, line in enumerate(lines) if f"with {SOFTWARE[software]}" in line]
    assert lines[place + 1].startswith("set yourself: ")
    options, _, program = lines[place + 2].removeprefix("submit it: frog ").partition(" -- ")
    words = program.split()
    if "$(cat" in words:
        at = words.index("$(cat")
        named = Path(words[at + 1].removesuffix(")"))
        words[at : at + 2] = named.read_text().split()
    assert main([*options.split(), "--dry-run", "--", *words]) == 0
    job = capsys.readouterr().out
    assert "#SBATCH --nodes=2" in job
    assert "#SBATCH --gpus-per-node=8" in job
    assert words[-1] in job


ADAPTED = {"lora-r": "8", "lora-targets": "q_proj,v_proj"}


def tuned(software: str, folder: Path, **options: str) -> list[str]:
    """Search for 8 GPUs and write the files of the fastest layout; return words of the command."""
    words = ["plan", "search", str(LLAMA), "--cluster", "h100x8", "--nodes", "1", "--seq-len", "2048"]
    words += ["--global-batch", "8", "--software", software, "--to", str(folder)]
    return words + [word for name, value in options.items() for word in (f"--{name}", value)]


@pytest.mark.parametrize("quantize", [False, True])
def test_peft_and_bitsandbytes_take_the_adapters(
    quantize: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    options = {**ADAPTED, "quantize": "nf4"} if quantize else ADAPTED
    assert main(tuned("trainer", tmp_path, **options)) == 0
    out = capsys.readouterr().out
    assert "\nLoRA r 8 on q_proj, v_proj: 3.41 M trained parameters" in out
    assert 'LoraConfig(**settings["lora"])' in out
    settings = json.loads((tmp_path / "peft.json").read_text())
    lora = peft.LoraConfig(**settings["lora"])
    assert (lora.r, lora.target_modules, lora.task_type) == (8, {"q_proj", "v_proj"}, "CAUSAL_LM")
    assert ("quantization" in settings) is quantize is ('BitsAndBytesConfig(**settings["quantization"])' in out)
    if quantize:
        stored = transformers.BitsAndBytesConfig(**settings["quantization"])
        assert (stored.load_in_4bit, stored.bnb_4bit_quant_type, stored.bnb_4bit_use_double_quant) == (
            True,
            "nf4",
            True,
        )
        assert str(stored.bnb_4bit_compute_dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    ("software", "zero", "storage"), [("trainer", 0, None), ("deepspeed", 1, None), ("trainer", 3, "bfloat16")]
)
def test_fsdp_shards_quantized_weights_as_floating_point(software: str, zero: int, storage: str | None) -> None:
    candidate, config = best(software, LLAMA)
    run = replace(candidate.run, adapters=Adapters(8, quantized=True))
    run = replace(run, layout=replace(run.layout, zero=zero, recompute="full"))
    files = program_files(SOFTWARE[software], replace(candidate, run=run), config, Path("planned"), 10, "h100x8")
    assert json.loads(files.texts["peft.json"])["quantization"].get("bnb_4bit_quant_storage") == storage
    if software != "trainer":
        return
    table = json.loads(files.texts["trainer.json"])
    assert ("fsdp" in table) is (zero == 3)
    assert table.get("gradient_checkpointing", False) is (zero == 0)


def test_ddp_needs_no_settings_of_fsdp() -> None:
    candidate, config = best("accelerate", LLAMA)
    run = replace(candidate.run, layout=replace(candidate.run.layout, zero=0, recompute="full"))
    for software in ("trainer", "accelerate"):
        files = program_files(SOFTWARE[software], replace(candidate, run=run), config, Path("planned"), 10, "h100x8")
        assert not [text for text in files.texts.values() if "fsdp" in text.lower()]
    assert "distributed_type: MULTI_GPU\n" in files.texts["accelerate.yaml"]
    assert "gradient_checkpointing_enable" in files.notes[-1]


@pytest.mark.parametrize(
    ("software", "options", "expected"),
    [
        (
            "torchtitan",
            {**ADAPTED, "quantize": "nf4"},
            "no file for torchtitan (FSDP2): Frog knows no options for adapters",
        ),
        ("trainer", {"packing": "500"}, "pack its documents, with attention inside each (TRL: packing=True)"),
    ],
)
def test_tuned_search_says_what_its_files_leave_out(
    software: str, options: dict[str, str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tuned(software, tmp_path, **options)) == 0
    out = capsys.readouterr().out
    assert expected in out
    assert "  dp 8, zero" in out
    assert "  dp 4 x" not in out, "neither quantized matrices nor documents are split"
    assert not (tmp_path / "run.toml").exists(), "Frog's run file states neither adapters nor documents"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lora-r": "8", "lora-targets": "k_prj"}, "--lora-targets k_prj: the model has no such matrix"),
        ({"quantize": "nf4"}, "--quantize nf4 without --lora-r"),
        ({"lora-r": "9999"}, "--lora-r 9999: exceeds the smaller side of a matrix"),
    ],
)
def test_impossible_adapters_are_refused_before_the_search(
    options: dict[str, str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tuned("trainer", tmp_path / "planned", **options)) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "planned").exists()
