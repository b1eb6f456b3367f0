"""The reduced gradient of a world is the gradient of one process over the whole batch: tied, untied and frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from workshop import MODEL, Workshop

from frog.config import load_model_config
from frog.model import TinyTransformer

WORKER = Path(__file__).parent / "gradient_worker.py"


@pytest.mark.parametrize("tying", ["tied", "untied"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_equal_one_process(workshop: Workshop, tmp_path: Path, world_size: int, tying: str) -> None:
    path = tmp_path / f"config_{tying}.json"
    path.write_text(json.dumps({**MODEL, "tie_word_embeddings": tying == "tied"}))
    torch.manual_seed(0)
    model = TinyTransformer(load_model_config(path))
    tokens = torch.randint(0, MODEL["vocab_size"], (8, 17))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file({**weights, "tokens": tokens}, tmp_path / f"given_{tying}.safetensors")

    workshop.run("frog", "run", "--nproc", str(world_size), "--", str(WORKER), str(tmp_path), tying)

    model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for rank in range(world_size):
        found = load_file(tmp_path / f"rank_{rank}.st")
        torch.testing.assert_close(found.pop("loss"), loss.detach(), rtol=1e-5, atol=0)
        assert found.pop("ranks").item() == sum(range(world_size)) / world_size
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)
