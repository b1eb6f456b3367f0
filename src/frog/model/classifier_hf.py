"""Write a classifier as a Hugging Face folder, for `AutoModelForSequenceClassification.from_pretrained`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from frog.core.files import write_json
from frog.core.schema import read_typed
from frog.model.classifier import Classifier
from frog.model.hf import save_hf
from frog.model.transformer import TinyTransformer

_PAD_ID = 0
"""The token that ends a document in training; no text to be classified contains it."""


def save_hf_classifier(model: Classifier, folder: Path, tokenizer_json: Path | None, labels: Sequence[str]) -> None:
    """Write a Llama or Mixtral ForSequenceClassification with its class names. The model's adapters must be merged.

    transformers takes the last token that is not padding as a text's last, so texts must be padded with token 0.
    """
    with torch.device("meta"):  # a causal model around the same layers, so that one function writes both
        causal = TinyTransformer(dataclasses.replace(model.config, tie_word_embeddings=True))
    causal.embed_tokens, causal.layers, causal.norm = model.embed_tokens, model.layers, model.norm
    causal.lm_head.weight = model.embed_tokens.weight
    save_hf(causal, folder, tokenizer_json)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"] = model.score.weight.detach().cpu().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = read_typed(folder / "config.json", dict[str, Any])
    (causal_name,) = config["architectures"]
    config |= {
        "architectures": [causal_name.replace("ForCausalLM", "ForSequenceClassification")],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "pad_token_id": _PAD_ID,
        "problem_type": "single_label_classification",
    }
    write_json(folder / "config.json", config)
