"""What other programs read: a layout as torchtitan's configuration, arguments of Megatron-LM and Megatron-Bridge,
DeepSpeed's JSON, accelerate's YAML, and the JSON of Trainer's arguments.

Names of options are those of torchtitan 0.2 and 0.3, Megatron-LM of August 2026, Megatron-Bridge 0.3, DeepSpeed 0.19,
accelerate 1.15 and transformers 5.23; tests parse the last three files with these programs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frog.plan.estimate.adapters import ALL, Adapters
from frog.plan.estimate.architectures import text_of
from frog.plan.estimate.packing import PackedModel
from frog.plan.layout import Layout
from frog.plan.model import PlannedModel
from frog.plan.plan_text import layout_words
from frog.plan.search.best import Candidate
from frog.plan.search.grid import AXES, CHOICES

_GIB = 2**30
PROGRAM_FILES = (
    *("torchtitan.toml", "torchtitan_run.py", "megatron.args", "bridge.args"),
    *("deepspeed.json", "trainer.json", "accelerate.yaml", "accelerate.env", "peft.json"),
)
"""Names of all files that `program_files` can return."""


class NotExpressibleError(Exception):
    """The program has no options for this layout or model."""


@dataclass(frozen=True)
class ProgramFiles:
    """The files of one program, and the command that reads them."""

    texts: dict[str, str]
    """Content by file name."""
    command: str
    """What a job starts, for a shell: `frog submit ... -- COMMAND`."""
    notes: tuple[str, ...] = ()
    """What the user still has to set."""


@dataclass(frozen=True)
class _Request:
    """A layout and what else a file states."""

    layout: Layout
    model: PlannedModel
    adapters: Adapters | None
    config: Mapping[str, Any]
    folder: Path
    steps: int
    head: str
    """A comment of one line: the layout with its predicted time and memory."""

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def replicas(self) -> int:
        """Groups of data-parallel ranks that each hold all states."""
        return self.layout.data // self.layout.shard if self.layout.zero else 1


@dataclass(frozen=True)
class _Program:
    write: Callable[[_Request], ProgramFiles]
    axes: tuple[str, ...]
    """Those of CHOICES that its options have."""
    takes_peft: bool = False
    """Its programs train adapters by PEFT."""


def axes_of(software: str) -> tuple[str, ...] | None:
    """Return those of CHOICES that a program's options have; None for a program whose files Frog does not write."""
    program = _program(software)
    return None if program is None else program.axes


def program_files(
    software: str, candidate: Candidate, config: Mapping[str, Any], folder: Path, steps: int, cluster_name: str
) -> ProgramFiles:
    """Return the files of a program for a layout.

    software: the program's name, as a table of runs calls it.
    config: content of the model's config.json.
    folder: where the files will be, as the job sees it.

    Raises:  NotExpressibleError with the reason.
    """
    program = _program(software)
    if program is None:
        raise NotExpressibleError(f"Frog writes no files of {software}")
    layout = candidate.run.layout
    varied = {axis: getattr(layout, axis) > 1 for axis in AXES}
    varied |= {"expert_tp": layout.expert_tp is not None, "recompute_layers": layout.recompute_layers is not None}
    if any(is_varied for axis, is_varied in varied.items() if axis not in program.axes):
        raise NotExpressibleError(f"{software} has no option for {layout_words(candidate.run)}")
    numbers = f"predicted on {layout.num_gpus} GPUs of {cluster_name}: {candidate.step_s:#.4g} s a step"
    head = f"{layout_words(candidate.run)}; {numbers}, {candidate.memory / _GIB:.1f} GiB"
    model, adapters = candidate.run.model, candidate.run.adapters
    if adapters is not None and not program.takes_peft:
        raise NotExpressibleError(f"Frog knows no options for adapters of {software}")
    asked = _Request(layout, model, adapters, text_of(config), folder, steps, head)
    return _with_tuning(asked, program.write(asked))


def _with_tuning(asked: _Request, files: ProgramFiles) -> ProgramFiles:
    """Return the files and notes with those of adapters and packed documents."""
    texts, notes = files.texts, files.notes
    if isinstance(asked.model, PackedModel):
        notes = (*notes, "pack its documents, with attention inside each (TRL: packing=True)")
    if asked.adapters is not None:
        texts = {**texts, "peft.json": json.dumps(_peft(asked.adapters, asked.layout), indent=2) + "\n"}
        wrap = 'get_peft_model(model, LoraConfig(**settings["lora"])) with the settings of peft.json'
        notes = (*notes, f"in it, {wrap}")
        if asked.adapters.quantized:
            load = 'quantization_config=BitsAndBytesConfig(**settings["quantization"])'
            notes = (*notes, f"load the model with {load}")
    return replace(files, texts=texts, notes=notes)


def _peft(adapters: Adapters, layout: Layout) -> dict[str, Any]:
    """Return arguments of PEFT's LoraConfig and of transformers' BitsAndBytesConfig."""
    targets: str | list[str] = ALL if ALL in adapters.targets else list(adapters.targets)
    table: dict[str, Any] = {"lora": {"r": adapters.rank, "target_modules": targets, "task_type": "CAUSAL_LM"}}
    if adapters.quantized:
        number = "float16" if layout.precision == "fp16" else "bfloat16"
        table["quantization"] = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": number,
        }
        if layout.zero == 3:  # FSDP splits tensors of floating point only
            table["quantization"]["bnb_4bit_quant_storage"] = number
    return table


def _program(software: str) -> _Program | None:
    name = software.lower()
    return next((program for word, program in _PROGRAMS.items() if word in name), None)


def _quoted(asked: _Request, name: str) -> str:
    return shlex.quote(str(asked.folder / name))


def _settings(values: Mapping[str, Any]) -> list[str]:
    """Return lines of TOML; JSON has the same numbers, strings, booleans and lists."""
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]


# ---- torchtitan ------------------------------------------------------------------------------------------------------

_TITAN = {
    ("llama", 32, 4096, 128_256): ("llama3", "8B", "llama3_8b"),
    ("llama", 80, 8192, 128_256): ("llama3", "70B", "llama3_70b"),
    ("llama", 126, 16384, 128_256): ("llama3", "405B", "llama3_405b"),
    ("qwen3", 28, 1024, 151_936): ("qwen3", "0.6B", "qwen3_0_6b"),
    ("qwen3", 28, 2048, 151_936): ("qwen3", "1.7B", "qwen3_1_7b"),
    ("qwen3", 40, 5120, 151_936): ("qwen3", "14B", "qwen3_14b"),
    ("qwen3", 64, 5120, 151_936): ("qwen3", "32B", "qwen3_32b"),
    ("qwen3_moe", 48, 2048, 151_936): ("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    ("deepseek_v3", 61, 7168, 129_280): ("deepseek_v3", "671B", "deepseek_v3_671b"),
    ("gpt_oss", 24, 2880, 201_088): ("gpt_oss", "20b", "gpt_oss_20b"),
    ("gpt_oss", 36, 2880, 201_088): ("gpt_oss", "120b", "gpt_oss_120b"),
}
"""By model type, layers, width and vocabulary: torchtitan's folder of the model, its flavor, and its configuration."""


def _torchtitan(asked: _Request) -> ProgramFiles:
    layout, model = asked.layout, asked.model
    known = _TITAN.get((asked.kind, model.layers, model.hidden, model.vocab))
    if known is None:
        raise NotExpressibleError("torchtitan has no configuration of this model")
    name, flavor, function = known
    parallelism = _titan_parallelism(asked)
    local = layout.micro_batch * (layout.num_micro if layout.pp > 1 else 1)
    training: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": layout.global_batch,
        "seq_len": layout.seq_len,
        "steps": asked.steps,
    }
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "training": {**training, "dataset": "c4"},
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": "full" if layout.recompute == "full" else "none"},
        "compile": {"enable": True},
    }
    texts = {}
    if layout.precision in ("mxfp8", "nvfp4"):
        raise NotExpressibleError(f"Frog does not know torchtitan's options for {layout.precision}")
    if layout.precision.startswith("fp8"):
        rows = layout.precision == "fp8_rowwise"
        sections["model"]["converters"] = ["quantize.linear.float8"]
        recipe = {"recipe_name": "rowwise"} if rows else {"enable_fsdp_float8_all_gather": True}
        sections["quantize.linear.float8"] = {**recipe, "filter_fqns": ["output"]}
    elif layout.ep == 1 or layout.expert_split == 1:  # 0.3 has no expert_tensor_parallel_degree
        texts["torchtitan_run.py"] = _titan_function(asked, (name, function), training, parallelism)
    lines = [f"# {asked.head}.", "# For torchtitan 0.2; set hf_assets_path of [model], the tokenizer's folder."]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *_settings(values)]
    texts["torchtitan.toml"] = "\n".join(lines) + "\n"
    parts = asked.folder.parts
    if "torchtitan_run.py" in texts and all(part.isidentifier() for part in parts) and parts[:1] != ("torchtitan",):
        command = f"--module {'.'.join((*parts, 'torchtitan_run'))} --config planned"
    else:
        command = f"--job.config_file {_quoted(asked, 'torchtitan.toml')}"
    return ProgramFiles(texts, f"-m torchtitan.train {command}", ("the tokenizer's folder and the data set",))


def _titan_parallelism(asked: _Request) -> dict[str, Any]:
    layout = asked.layout
    if layout.shard % layout.cp:
        raise NotExpressibleError("torchtitan shards over whole groups of context parallelism")
    shards = layout.shard // layout.cp
    degrees: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp // shards,
        "data_parallel_shard_degree": shards,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
    }
    if layout.ep > 1:
        if layout.shard * layout.tp % layout.expert_ranks:
            raise NotExpressibleError("torchtitan divides experts among the ranks that share the parameters")
        degrees["expert_parallel_degree"] = layout.ep
        if layout.expert_split > 1:
            degrees["expert_tensor_parallel_degree"] = layout.expert_split
    if layout.expert_tp is not None and (layout.ep == 1 or layout.expert_tp != layout.tp):
        raise NotExpressibleError("torchtitan splits an expert over all ranks of tp, or with ep over one")
    if layout.pp > 1:
        stages = layout.pp * layout.virtual_stages
        if asked.model.layers % stages:
            raise NotExpressibleError("torchtitan's stages have equal numbers of layers")
        degrees |= {
            "pipeline_parallel_schedule": "1F1B" if layout.virtual_stages == 1 else "Interleaved1F1B",
            "pipeline_parallel_layers_per_stage": asked.model.layers // stages,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
            "pipeline_parallel_microbatch_size": layout.micro_batch,
        }
    return degrees


def _titan_function(
    asked: _Request, names: tuple[str, str], training: Mapping[str, Any], parallelism: Mapping[str, Any]
) -> str:
    """Return a module with a function that changes one of torchtitan's configurations (0.3)."""
    name, function = names
    full = asked.layout.recompute == "full"
    lines = ['"""A layout for torchtitan 0.3. Written by frog plan search.', "", f"{asked.head}.", '"""', ""]
    lines += ["from torchtitan.distributed.activation_checkpoint import FullAC"] if full else []
    lines += [f"from torchtitan.models.{name}.config_registry import {function}", "", ""]
    lines += ["def planned():", f"    config = {function}()"]
    lines += [f"    config.training.{line}" for line in _settings(training)]
    lines += [f"    config.parallelism.{line}" for line in _settings(parallelism)]
    lines += ["    config.training.disable_cuda_graphs = True"] if asked.layout.pp > 1 or asked.model.experts else []
    lines += [f"    config.activation_checkpoint = {'FullAC.Config()' if full else 'None'}"]
    lines += ["    config.compile.enable = True", "    return config"]
    return "\n".join(lines) + "\n"


# ---- Megatron --------------------------------------------------------------------------------------------------------


def _megatron(asked: _Request) -> ProgramFiles:
    model = _megatron_model(asked)
    layout = asked.layout
    options = {
        **_megatron_layout(layout, asked.replicas),
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.global_batch,
        "seq-length": layout.seq_len,
        "train-iters": asked.steps,
        "lr": 3e-4,
        "mock-data": True,
        "tokenizer-type": "NullTokenizer",
        "vocab-size": asked.model.vocab - 1,  # NullTokenizer adds the end of a document
    }
    lines = [f"--{name}" if value is True else f"--{name} {value}" for name, value in {**options, **model}.items()]
    notes = "--data-path and a tokenizer instead of --mock-data, and the learning rate"
    command = f"pretrain_gpt.py $(cat {_quoted(asked, 'megatron.args')})"
    if layout.tp > 1 or layout.cp > 1:  # Megatron refuses to start on Hopper without it
        command = f"env CUDA_DEVICE_MAX_CONNECTIONS=1 python {command}"
    return ProgramFiles({"megatron.args": "\n".join(lines) + "\n"}, command, (notes,))


def _megatron_layout(layout: Layout, replicas: int) -> dict[str, Any]:
    options: dict[str, Any] = {"tensor-model-parallel-size": layout.tp, "pipeline-model-parallel-size": layout.pp}
    if layout.cp > 1:
        options["context-parallel-size"] = layout.cp
    if layout.ep > 1:
        options["expert-model-parallel-size"] = layout.ep
    if layout.ep > 1 or layout.expert_tp is not None:
        options["expert-tensor-parallel-size"] = layout.expert_split
    if layout.sequence_parallel:
        options["sequence-parallel"] = True
    if layout.virtual_stages > 1:
        options["num-virtual-stages-per-pipeline-rank"] = layout.virtual_stages
    if layout.recompute == "full":
        options |= {f"recompute-{name}": value for name, value in _megatron_recomputation(layout).items()}
    options |= {"fp16": True} if layout.precision == "fp16" else {"bf16": True}
    if layout.precision == "fp8_rowwise":
        raise NotExpressibleError("Megatron has no float8 with a scale for each row")
    if layout.precision == "fp8":
        options |= {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}
    if layout.precision == "mxfp8":
        options |= {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}
    if layout.precision == "nvfp4":
        raise NotExpressibleError("Frog does not know Megatron's options for nvfp4")
    options["overlap-grad-reduce"] = True
    if layout.zero:
        options |= {"use-distributed-optimizer": True, "overlap-param-gather": True}
        if replicas > 1:
            options["num-distributed-optimizer-instances"] = replicas
    return options


def _megatron_recomputation(layout: Layout) -> dict[str, Any]:
    if layout.recompute_layers is None:
        return {"granularity": "full", "method": "uniform", "num-layers": 1}
    return {"granularity": "full", "method": layout.recompute_method, "num-layers": layout.recompute_layers}


_ROTATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
"""Model types whose layers Megatron's own options describe."""


def _megatron_model(asked: _Request) -> dict[str, Any]:
    model, config = asked.model, asked.config
    if asked.kind not in (*_ROTATED, "gpt2") or model.window:
        raise NotExpressibleError(f"Frog does not know Megatron's options for {asked.kind}")
    options: dict[str, Any] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn or model.expert_ffn,
        "num-attention-heads": model.heads,
        "max-position-embeddings": max(asked.layout.seq_len, int(config.get("max_position_embeddings") or 0)),
    }
    if asked.kind == "gpt2":
        return {**options, "position-embedding-type": "learned_absolute"}
    options |= {
        "group-query-attention": True,
        "num-query-groups": model.kv_heads,
        "kv-channels": model.head_dim,
        "normalization": "RMSNorm",
        "swiglu": True,
        "disable-bias-linear": True,
        "position-embedding-type": "rope",
        "rotary-base": int(_rotary_base(config)),
    }
    if model.kv_heads == model.heads:
        del options["group-query-attention"], options["num-query-groups"]
    if not model.tied:
        options["untie-embeddings-and-output-weights"] = True
    if asked.kind == "qwen2":
        options["add-qkv-bias"] = True
    if asked.kind in ("qwen3", "qwen3_moe"):
        options["qk-layernorm"] = True
    if model.experts:
        options |= {
            "num-experts": model.experts,
            "moe-router-topk": model.experts_per_token,
            "moe-ffn-hidden-size": model.expert_ffn,
            "moe-token-dispatcher-type": "alltoall",
            "moe-grouped-gemm": True,
        }
        if asked.layout.traits.overlaps_experts:
            options["overlap-moe-expert-parallel-comm"] = True
    return options


def _rotary_base(config: Mapping[str, Any]) -> float:
    """Return the base of the rotation, which newer files keep in a table."""
    table = config.get("rope_parameters")
    base = table.get("rope_theta") if isinstance(table, dict) else None
    return float(base or config.get("rope_theta") or 10_000)


def _bridge(asked: _Request) -> ProgramFiles:
    layout = asked.layout
    values: dict[str, Any] = {
        "model.tensor_model_parallel_size": layout.tp,
        "model.pipeline_model_parallel_size": layout.pp,
        "model.virtual_pipeline_model_parallel_size": layout.virtual_stages if layout.virtual_stages > 1 else "null",
        "model.context_parallel_size": layout.cp,
        "model.expert_model_parallel_size": layout.ep,
        "model.expert_tensor_parallel_size": layout.expert_split if asked.model.experts else "null",
        "model.sequence_parallel": layout.sequence_parallel,
        "model.seq_length": layout.seq_len,
        "dataset.seq_length": layout.seq_len,
        "train.micro_batch_size": layout.micro_batch,
        "train.global_batch_size": layout.global_batch,
        "train.train_iters": asked.steps,
        "ddp.use_distributed_optimizer": layout.zero > 0,
        "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": layout.zero > 0,
        "ddp.num_distributed_optimizer_instances": asked.replicas,
        "optimizer.use_distributed_optimizer": layout.zero > 0,
    }
    if layout.recompute == "full":
        recomputation = _megatron_recomputation(layout).items()
        values |= {f"model.recompute_{name.replace('-', '_')}": value for name, value in recomputation}
    else:
        values["model.recompute_granularity"] = "null"
    words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
    recipe = "scripts/training/run_recipe.py --recipe RECIPE --mode pretrain --dataset mock"
    command = f"{recipe} $(cat {_quoted(asked, 'bridge.args')})"
    notes = "the name of your model's recipe instead of RECIPE, and its precision"
    return ProgramFiles({"bridge.args": "\n".join(words) + "\n"}, command, (notes,))


# ---- DeepSpeed, accelerate, Trainer ----------------------------------------------------------------------------------


def _deepspeed(asked: _Request) -> ProgramFiles:
    layout = asked.layout
    zero: dict[str, Any] = {"stage": layout.zero}
    if layout.zero:
        zero["overlap_comm"] = layout.traits.overlaps_gradients
    if layout.zero == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if asked.replicas > 1:  # it had MiCS until 0.18
        raise NotExpressibleError("DeepSpeed shares states among all ranks")
    table = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro,
        "zero_optimization": zero,
        _half(layout): {"enabled": True},
    }
    notes = [f"your program instead of my.py, and sequences of {layout.seq_len} tokens"]
    if layout.recompute == "full":
        notes.append("model.gradient_checkpointing_enable() in it: the plan recomputes each layer")
    command = f"my.py --deepspeed --deepspeed_config {_quoted(asked, 'deepspeed.json')}"
    return ProgramFiles({"deepspeed.json": json.dumps(table, indent=2) + "\n"}, command, tuple(notes))


def _half(layout: Layout) -> str:
    if layout.narrow:
        name = "float8" if layout.precision.startswith("fp8") else layout.precision
        raise NotExpressibleError(f"its options have no {name}")
    return "fp16" if layout.precision == "fp16" else "bf16"


def _layer_class(asked: _Request) -> str:
    """Return the class of a layer in transformers, which FSDP wraps."""
    layer_class = _LAYER_CLASSES.get(asked.kind)
    if layer_class is None:
        raise NotExpressibleError(f"Frog does not know the name of a layer of {asked.kind} in transformers")
    return layer_class


_LAYER_CLASSES = {
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "qwen3_moe": "Qwen3MoeDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3_text": "Gemma3DecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "olmo2": "Olmo2DecoderLayer",
    "gpt_oss": "GptOssDecoderLayer",
    "gpt2": "GPT2Block",
}


def _fsdp_settings(asked: _Request) -> dict[str, Any]:
    """Return FSDP2's settings by accelerate's names, without their `fsdp_`."""
    if asked.replicas > 1:
        raise NotExpressibleError("these options share states among all ranks")
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": _layer_class(asked),
        "reshard_after_forward": True,
        "activation_checkpointing": asked.layout.recompute == "full",
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def _trainer(asked: _Request) -> ProgramFiles:
    layout = asked.layout
    table: dict[str, Any] = {
        "output_dir": str(Path("runs", asked.folder.name or "planned")),
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro,
        "max_steps": asked.steps,
        _half(layout): True,
    }
    if layout.zero:
        settings = _fsdp_settings(asked)
        settings["transformer_layer_cls_to_wrap"] = [settings["transformer_layer_cls_to_wrap"]]
        table |= {"fsdp": True, "fsdp_config": settings}
    elif layout.recompute == "full":
        table |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    notes = f"your program instead of my.py, and sequences of {layout.seq_len} tokens"
    command = f"my.py {_quoted(asked, 'trainer.json')}"
    return ProgramFiles({"trainer.json": json.dumps(table, indent=2) + "\n"}, command, (notes,))


def _accelerate(asked: _Request) -> ProgramFiles:
    layout, settings = asked.layout, _fsdp_settings(asked) if asked.layout.zero else {}
    lines = [f"# {asked.head}.", f"# {layout.num_micro} micro-batches of {layout.micro_batch} on each rank:"]
    lines += [f"# Accelerator(gradient_accumulation_steps={layout.num_micro}), batch size {layout.micro_batch}."]
    kind = "MULTI_GPU" if layout.num_gpus > 1 else "NO"
    if settings:
        kind = "FSDP"
    lines += ["compute_environment: LOCAL_MACHINE", f"distributed_type: {kind}", f"mixed_precision: {_half(layout)}"]
    lines += [f"num_processes: {layout.num_gpus}"]
    if settings:
        lines += ["fsdp_config:", *(f"  fsdp_{name}: {json.dumps(value)}" for name, value in settings.items())]
    variables: dict[str, Any] = {"ACCELERATE_USE_FSDP": True} if settings else {}
    variables["ACCELERATE_MIXED_PRECISION"] = _half(layout)
    variables |= {f"FSDP_{name.upper().replace('LAYER_', '')}": value for name, value in settings.items()}
    words = [f"{name}={str(value).lower() if value in (True, False) else value}" for name, value in variables.items()]
    notes = [f"your program instead of my.py, and sequences of {layout.seq_len} tokens"]
    if not settings and layout.recompute == "full":
        notes.append("model.gradient_checkpointing_enable() in it: the plan recomputes each layer")
    texts = {"accelerate.yaml": "\n".join(lines) + "\n", "accelerate.env": "\n".join(words) + "\n"}
    return ProgramFiles(texts, f"env $(cat {_quoted(asked, 'accelerate.env')}) python my.py", tuple(notes))


_PROGRAMS = {
    "torchtitan": _Program(_torchtitan, (*AXES, "expert_tp")),
    "bridge": _Program(_bridge, CHOICES),
    "megatron-deepspeed": _Program(_deepspeed, ()),
    "megatron": _Program(_megatron, CHOICES),
    "deepspeed": _Program(_deepspeed, (), takes_peft=True),
    "trainer": _Program(_trainer, (), takes_peft=True),
    "accelerate": _Program(_accelerate, (), takes_peft=True),
}
"""By a word of the program's name; the first that occurs counts."""
