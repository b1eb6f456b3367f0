"""Configs of many sizes, what the learner makes of them, and two real models trained side by side."""

import random
import time
from types import ModuleType
from typing import Any

import torch

from frog.config import ModelConfig
from frog.model.transformer import TinyTransformer

LAB = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
"""config.json of the course."""


def make_configs(seed: int) -> list[dict[str, Any]]:
    """That of the course; with 4 layers; and others, of which no two sizes are equal."""
    numbers, configs = random.Random(seed), [LAB, LAB | {"num_hidden_layers": 4}, LAB | {"num_attention_heads": 8}]
    configs[2]["num_key_value_heads"] = 8
    for tied, share in ((True, 1), (True, 2), (False, 1), (False, 4)):
        heads = 4 * numbers.randint(1, 3)
        width = heads * 2 * numbers.randint(2, 6)
        sizes = {"hidden_size": width, "intermediate_size": width * 2 + numbers.randint(5, 50)}
        sizes |= {"num_hidden_layers": numbers.randint(3, 6), "num_attention_heads": heads}
        sizes |= {"num_key_value_heads": heads // share, "vocab_size": numbers.randint(100, 999)}
        sizes |= {"max_position_embeddings": numbers.randint(30, 90), "tie_word_embeddings": tied}
        configs.append(sizes)
    return configs


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    configs = make_configs(case["seed"])
    return {
        "parameters": [learner.num_parameters(dict(config)) for config in configs],
        "bytes": [learner.training_bytes(dict(config)) for config in configs],
    }


def train_both(learner: ModuleType, case: dict[str, Any]) -> Any:
    """2 and 4 layers for some steps on one text of dice: loss at the end, seconds of computing a step."""
    generator = torch.Generator().manual_seed(case["seed"])
    favourites = torch.randint(2048, (2048, 4), generator=generator)
    columns = [torch.randint(2048, (8,), generator=generator)]
    while len(columns) < 33:
        pick = torch.randint(4, (8,), generator=generator)
        columns.append(favourites[columns[-1] % 64, pick])
    text = torch.stack(columns, dim=1)
    return [train(LAB | {"num_hidden_layers": layers}, text, case["seed"]) for layers in (2, 4)]


def train(sizes: dict[str, Any], text: torch.Tensor, seed: int, num_steps: int = 12) -> dict[str, float]:
    torch.manual_seed(seed)
    model = TinyTransformer(ModelConfig(**sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    times = []
    for _ in range(num_steps):
        start = time.process_time()
        loss = model(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - start)
    return {"loss": loss.item(), "seconds": sorted(times)[num_steps // 2]}
