"""Build a torch module on the meta device, without memory, and print its sizes as JSON: `... rank MODULE:FUNCTION`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any

import torch


def main() -> None:
    module_name, _, function_name = sys.argv[1].partition(":")
    sys.path.insert(0, "")
    function = getattr(importlib.import_module(module_name), function_name)
    with torch.device("meta"):
        built = function()
    if not isinstance(built, torch.nn.Module):
        sys.exit(f"returned a {type(built).__name__}, not a torch module")
    config = _sizes(getattr(built, "config", None))
    if not config:
        sys.exit("the module has no `config` with its sizes, under Hugging Face's names")
    num_parameters = sum(parameter.numel() for parameter in built.parameters())
    print(json.dumps({"config": config, "num_parameters": num_parameters}))


def _sizes(config: Any) -> dict[str, Any]:
    """Return the plain values of a module's configuration: of transformers, a dataclass, or another object."""
    if hasattr(config, "to_dict"):
        table = config.to_dict()
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        table = dataclasses.asdict(config)
    elif isinstance(config, dict):
        table = config
    else:
        table = vars(config) if hasattr(config, "__dict__") else {}
    sizes = {
        key: value for key, value in table.items() if isinstance(value, (bool, int, float, str)) or _is_whole(value)
    }
    if "n_embd" in sizes and "model_type" not in sizes:
        sizes["model_type"] = "gpt2"
        sizes.setdefault("n_positions", sizes.get("block_size", 1024))
    return sizes


def _is_whole(value: Any) -> bool:
    """True for a list of whole numbers, such as `mlp_only_layers`."""
    return isinstance(value, list) and all(type(item) is int for item in value)


if __name__ == "__main__":
    main()
