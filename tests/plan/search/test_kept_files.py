"""What a search writes for each program, its grids and its page, word by word and number by number: kept_files.json.

Other tests let the programs read the files. Here no option may change unnoticed. After a change that is meant:
FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/plan/search/test_kept_files.py, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frog.core.errors import UsageError
from frog.plan.estimate.architectures import model_of
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.rows import PlannedRun
from frog.plan.layout import Layout, Traits
from frog.plan.search.best import Candidate, search, what_binds
from frog.plan.search.coarse import KnownLayers, evaluate
from frog.plan.search.files import check_folder, run_file, slurm_profile
from frog.plan.search.grid import AXES, CHOICES, layout_grid
from frog.plan.search.page import front_page
from frog.plan.search.program_files import NotExpressibleError, axes_of, program_files

KEPT = Path(__file__).with_name("kept_files.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
H100 = clusters()["h100x8"]
PROGRAMS = (
    "torchtitan",
    "Megatron-Core",
    "Megatron-Bridge",
    "Megatron-DeepSpeed",
    "DeepSpeed",
    "Trainer",
    "accelerate",
)
LLAMA = json.loads((Path(__file__).parents[3] / "config" / "llama3_8b.json").read_text())
QWEN = {**LLAMA, "model_type": "qwen3", "head_dim": 128, "num_hidden_layers": 28, "hidden_size": 1024,
        "intermediate_size": 3072, "num_attention_heads": 16, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 2048, "rope_theta": None}  # fmt: skip
MIXTURE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    "tie_word_embeddings": False, "rope_parameters": {"rope_theta": 5e6},
}  # fmt: skip
GPT = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
MODELS = {
    "llama": LLAMA,
    "qwen2": {**QWEN, "model_type": "qwen2", "num_key_value_heads": 16},
    "qwen3": QWEN,
    "mixture": MIXTURE,
    "gpt2": GPT,
}
PLAIN = Layout(4096, 256, dp=64, micro_batch=2, zero=3)
OVERLAPS = Traits(overlaps_gradients=False, overlaps_experts=True)
CASES: dict[str, tuple[str, Layout]] = {
    "plain": ("llama", PLAIN),
    "stages": ("llama", replace(PLAIN, dp=8, tp=2, pp=4, virtual_stages=2, sequence_parallel=True, zero=1)),
    "one chunk": ("qwen3", replace(PLAIN, dp=16, pp=4, zero=0, traits=OVERLAPS)),
    "uneven": ("llama", replace(PLAIN, dp=8, pp=8, virtual_stages=3)),
    "groups": ("qwen3", replace(PLAIN, dp=32, tp=2, zero=1, zero_group=8)),
    "context": ("llama", replace(PLAIN, dp=16, tp=2, cp=2, recompute="full")),
    "experts": ("mixture", replace(PLAIN, dp=32, pp=2, ep=8, traits=OVERLAPS)),
    "more experts": ("mixture", replace(PLAIN, dp=8, ep=16, zero=3, zero_group=4)),
    "split experts": ("mixture", replace(PLAIN, dp=16, tp=4, ep=4, expert_tp=4, sequence_parallel=True, zero=1)),
    "some again": (
        "llama",
        replace(PLAIN, dp=16, pp=4, virtual_stages=2, recompute="full", recompute_layers=3, zero=1),
    ),
    "float8": ("llama", replace(PLAIN, precision="fp8", zero=2)),
    "rows": ("llama", replace(PLAIN, precision="fp8_rowwise")),
    "half": ("qwen2", replace(PLAIN, precision="fp16", recompute="full", zero=1)),
    "old": ("gpt2", replace(PLAIN, seq_len=2048, dp=4, micro_batch=1)),
    "replicas": ("qwen2", replace(PLAIN, zero=0, zero_group=0)),
}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


def compare(name: str, found: Any, kept: dict[str, Any]) -> None:
    found = json.loads(json.dumps(found))
    if REWRITE:
        kept[name] = found
    assert found == kept[name], "if the change is meant, rewrite kept_files.json: see above"


def candidate(case: str) -> Candidate:
    model, layout = CASES[case]
    return Candidate(PlannedRun(model_of(MODELS[model], model), layout, H100), 1.23456, 2**30 * 31.26, 0.4)


@pytest.mark.parametrize("case", CASES)
def test_no_option_of_a_program_changes_unnoticed(case: str, kept: dict[str, Any]) -> None:
    chosen = candidate(case)
    found: dict[str, Any] = {}
    for program in PROGRAMS:
        try:
            files = program_files(program, chosen, MODELS[CASES[case][0]], Path("my plans"), 1000, "h100x8")
        except NotExpressibleError as why:
            found[program] = str(why)
            continue
        texts = {name: text.splitlines() for name, text in files.texts.items()}
        found[program] = {**texts, "command": files.command, "notes": files.notes}
    written = run_file(chosen, Path("planned"), "h100x8", 1000)
    found["Frog"] = written.splitlines() if written is not None else None
    compare(case, found, kept)


@pytest.mark.parametrize("folder", ["planned", "torchtitan", "a/b", "a-b", "/abs/planned"])
def test_torchtitans_module_is_imported_only_from_a_folder_that_python_can_name(folder: str) -> None:
    files = program_files("torchtitan", candidate("plain"), LLAMA, Path(folder), 10, "h100x8")
    modules = {"planned": "planned.torchtitan_run", "a/b": "a.b.torchtitan_run"}
    expected = f"--module {modules[folder]} --config planned" if folder in modules else "--job.config_file "
    assert files.command.startswith(f"-m torchtitan.train {expected}")


def test_programs_without_files_have_no_axes() -> None:
    assert (axes_of("HAI-LLM"), axes_of("Transformers Trainer (FSDP2)")) == (None, ())
    assert axes_of("torchtitan (FSDP2)") == (*AXES, "expert_tp")
    assert axes_of("Megatron-Core") == axes_of("Megatron-Bridge") == CHOICES
    with pytest.raises(NotExpressibleError, match="Frog writes no files of HAI-LLM"):
        program_files("HAI-LLM", candidate("plain"), LLAMA, Path("p"), 10, "h100x8")


GRIDS = {
    "dense": ("llama", 48, Layout(4096, 96), (0, 1, 2, 3), ("tp", "pp", "cp", "ep")),
    "mixture": ("mixture", 64, Layout(2048, 128, traits=OVERLAPS), (1, 3), ("tp", "pp", "cp", "ep")),
    "split experts": ("mixture", 64, Layout(2048, 128), (1,), CHOICES),
    "scores": ("gpt2", 12, Layout(1024, 48, traits=Traits("scores")), (0, 1), ("tp", "pp", "cp")),
    "data only": ("qwen3", 24, Layout(1000, 72), (0, 2), ()),
}


@pytest.mark.parametrize("name", GRIDS)
def test_no_layout_of_a_grid_changes_unnoticed(name: str, kept: dict[str, Any]) -> None:
    model_name, num_gpus, base, zeros, axes = GRIDS[name]
    model = model_of(MODELS[model_name], model_name)
    grid = layout_grid(model, H100, num_gpus, base, zeros, axes)
    weights = np.arange(len(grid)) % 9973 + 1
    found: dict[str, Any] = {each.name: int((getattr(grid, each.name) * weights).sum()) for each in fields(grid)}
    some = grid[np.arange(0, len(grid), max(1, len(grid) // 400))]
    numbers = evaluate(base, some, KnownLayers(model, H100))
    sums = [float(np.log(column).sum()) for column in (numbers.step_s, numbers.memory)]
    compare(f"grid: {name}", {"layouts": len(grid), **found, "sums": [f"{each:.8g}" for each in sums]}, kept)


def test_no_number_of_a_search_changes_unnoticed(kept: dict[str, Any]) -> None:
    model = model_of(MODELS["qwen3"], "qwen3")
    found = search(model, H100, [16, 8], Layout(4096, 64), (0, 3), axes=("tp", "pp"))
    page = front_page(found, "h100x8")
    shown = [
        [
            str(one.run.layout.dp),
            str(one.run.layout.tp),
            str(one.run.layout.pp),
            f"{one.step_s:.7g}",
            f"{one.memory:.7g}",
        ]
        for one in (*found.best, *found.front)
    ]
    gains = {name: f"{gain:.5g}" for name, gain in what_binds(found, (0, 3)).items()}
    numbers = [f"{float(number):.5g}" for number in re.findall(r"-?\d+(?:\.\d+)?", page.partition("<svg")[2])]
    counts = [found.num_layouts, found.num_fitting]
    compare("search", {"counts": counts, "layouts": shown, "gains": gains, "page": " ".join(numbers)}, kept)
    compare("profile", slurm_profile(found.best[0].run, "h100x8").splitlines(), kept)


def test_files_of_the_user_are_not_overwritten(tmp_path: Path) -> None:
    check_folder(tmp_path / "new")
    for name in ("run.toml", "torchtitan.toml"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"run\.toml and torchtitan\.toml would be overwritten"):
        check_folder(tmp_path)
    (tmp_path / "front.html").touch()
    check_folder(tmp_path)
