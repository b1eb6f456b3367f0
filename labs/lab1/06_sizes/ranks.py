"""Call the learner's functions with configs of many sizes, and train two real models in turn."""

import random
import time
from types import ModuleType
from typing import Any

import torch

from frog.core.config import ModelConfig
from frog.train.model.transformer import TinyTransformer

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
"""The course's config.json."""


def make_configs(seed: int) -> list[dict[str, Any]]:
    """Return the course's config, the same with 4 layers, and configs in which all sizes differ."""
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
    """Train 2 and 4 layers on one random text; return the last loss and the processor seconds of the fastest step."""
    generator = torch.Generator().manual_seed(case["seed"])
    favourites = torch.randint(2048, (2048, 4), generator=generator)
    columns = [torch.randint(2048, (8,), generator=generator)]
    while len(columns) < 33:
        pick = torch.randint(4, (8,), generator=generator)
        columns.append(favourites[columns[-1] % 64, pick])
    text = torch.stack(columns, dim=1)
    runs = [Training(LAB | {"num_hidden_layers": layers}, text, case["seed"]) for layers in (2, 4)]
    for _ in range(12):  # in turn, so that other programs slow both equally
        for run in runs:
            run.step()
    return [{"loss": run.loss, "seconds": min(run.times)} for run in runs]


class Training:
    """A model that trains on one text, with the processor time of each step."""

    def __init__(self, sizes: dict[str, Any], text: torch.Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = TinyTransformer(ModelConfig(**sizes))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.inputs, self.labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.times: list[float] = []
        self.loss = float("nan")

    def step(self) -> None:
        start = time.process_time()
        loss = self.model(self.inputs, self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.times.append(time.process_time() - start)
        self.loss = loss.item()
