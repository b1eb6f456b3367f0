"""Make the small data sets, models and stand-ins that the programs of false_alarms.toml read.

    python benchmarks/false_alarms_adapters.py FOLDER

Everything is drawn from fixed seeds: texts of 14 words, pictures of noise, models of a few thousand parameters.
"""

from __future__ import annotations

import json
import pickle
import random
import struct
import sys
from pathlib import Path

import numpy as np

WORDS = ["the", "king", "and", "my", "lord", "shall", "love", "to", "be", "not", "of", "in", "night", "day"]

STUBS = {
    "evaluate.py": '''
"""Replaces `evaluate`, whose metrics are downloaded."""


class load:
    def __init__(self, *names, **more):
        self.right = self.all = 0

    def add_batch(self, predictions, references):
        self.all += len(references)

    def compute(self, **more):
        return {"accuracy": self.right / max(self.all, 1), "f1": 0.0}
''',
    "wandb.py": '''
"""Replaces `wandb`, which reports to a server."""


def init(*words, **more):
    return None


log = finish = watch = login = init
''',
}


def texts(folder: Path) -> list[str]:
    """Write the texts in the forms that programs read; return their lines."""
    draw = random.Random(1)
    lines = [" ".join(draw.choice(WORDS) for _ in range(12)) for _ in range(2000)]
    (folder / "words").mkdir(parents=True)
    (folder / "words" / "train.txt").write_text("\n".join(lines))
    stories = folder / "stories"
    stories.mkdir()
    for part in range(3):
        tokens = np.array([draw.randrange(64) for _ in range(20_000)], dtype=np.uint16)
        tokens.tofile(stories / f"data{part:02d}.bin")
    nano = folder / "nano"
    nano.mkdir()
    for part in ("train", "val"):
        np.array([draw.randrange(64) for _ in range(20_000)], dtype=np.uint16).tofile(nano / f"{part}.bin")
    (nano / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))
    return lines


def write_json(path: Path, rows: list[dict[str, object]]) -> None:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def tasks(folder: Path, lines: list[str]) -> None:
    """Write the data sets of the libraries' examples: pairs of sentences, preferences, instructions, summaries."""
    pairs = [
        {"sentence1": first, "sentence2": second, "label": place % 2, "idx": place}
        for place, (first, second) in enumerate(zip(lines[:480], lines[500:980], strict=True))
    ]
    glue = folder / "glue"
    write_json(glue / "train.json", pairs[:400])
    write_json(glue / "validation.json", pairs[400:450])
    write_json(glue / "test.json", pairs[450:])
    parts = "".join(f"  - split: {part}\n    path: {part}.json\n" for part in ("train", "validation", "test"))
    (glue / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{parts}---\n")
    write_json(
        folder / "preferences" / "train.jsonl",
        [
            {"prompt": a, "chosen": b, "rejected": c}
            for a, b, c in zip(lines[::3], lines[1::3], lines[2::3], strict=False)
        ],
    )
    write_json(folder / "prompts" / "train.jsonl", [{"prompt": line} for line in lines])
    write_json(folder / "summaries" / "train.json", [{"text": line, "summary": line[:20]} for line in lines[:400]])
    write_json(
        folder / "choices" / "train.json",
        [
            {"sent1": a, "sent2": b, **{f"ending{n}": lines[n + place] for n in range(4)}, "label": place % 4}
            for place, (a, b) in enumerate(zip(lines[:400], lines[400:800], strict=True))
        ],
    )
    write_json(
        folder / "entities" / "train.json",
        [
            {"tokens": line.split(), "ner_tags": [("O", "B-PER")[len(word) > 3] for word in line.split()]}
            for line in lines[:400]
        ],
    )
    (folder / "alpaca.json").write_text(
        json.dumps([{"instruction": line, "input": "", "output": line} for line in lines[:400]])
    )


def pictures(folder: Path) -> None:
    """Write pictures of noise in two classes, and digits in MNIST's format."""
    from PIL import Image

    draws = np.random.default_rng(0)
    for part, number in (("train", 80), ("val", 16)):
        for place in range(number):
            path = folder / "pictures" / part / str(place % 2) / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    raw = folder / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, number in (("train", 640), ("t10k", 128)):
        images = draws.integers(0, 256, (number, 28, 28), dtype=np.uint8).tobytes()
        labels = draws.integers(0, 10, number, dtype=np.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, number, 28, 28) + images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, number) + labels)


def models(folder: Path, lines: list[str]) -> None:
    """Save random Llama, BERT, GPT-2 and T5 models with their tokenizer."""
    import tokenizers
    import torch
    import transformers

    whole = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>"]
    whole.train_from_iterator(lines, tokenizers.trainers.BpeTrainer(vocab_size=256, special_tokens=special))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        mask_token="<mask>",
        cls_token="<cls>",
        sep_token="</s>",
        model_max_length=64,
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"
    small = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    common = {"vocab_size": 256, "pad_token_id": 4, "bos_token_id": 1, "eos_token_id": 2}
    made = {
        "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**small, **common, max_position_embeddings=128)),
        "bert": ("BertForMaskedLM", transformers.BertConfig(**small, **common, max_position_embeddings=128)),
        "gpt2": (
            "GPT2LMHeadModel",
            transformers.GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=128),
        ),
        "t5": (
            "T5ForConditionalGeneration",
            transformers.T5Config(
                **common, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=4
            ),
        ),
    }
    for name, (kind, config) in made.items():
        torch.manual_seed(0)
        getattr(transformers, kind)(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def nanochat(folder: Path, lines: list[str]) -> None:
    """Write a tokenizer of single bytes and shards of text for nanochat, if tiktoken is installed."""
    try:
        import tiktoken
    except ImportError:
        return
    import pyarrow
    import pyarrow.parquet
    import torch

    home = folder / "nanochat"
    (home / "tokenizer").mkdir(parents=True)
    special = [
        "bos",
        *(f"{who}_{end}" for who in ("user", "assistant", "python", "output") for end in ("start", "end")),
    ]
    encoding = tiktoken.Encoding(
        name="bytes",
        pat_str=r"\w+|\W+",
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={f"<|{name}|>": 256 + place for place, name in enumerate(special)},
    )
    (home / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    sizes = torch.ones(encoding.n_vocab, dtype=torch.int32)
    sizes[256:] = 0
    torch.save(sizes, home / "tokenizer" / "token_bytes.pt")
    shards = home / "base_data_climbmix"
    shards.mkdir()
    for number in range(2):
        table = pyarrow.table({"text": lines[number * 1000 : number * 1000 + 1000]})
        pyarrow.parquet.write_table(table, shards / f"shard_{number:05d}.parquet", row_group_size=100)


def make_all() -> None:
    folder = Path(sys.argv[1]).resolve()
    lines = texts(folder)
    tasks(folder, lines)
    pictures(folder)
    models(folder, lines)
    nanochat(folder, lines)
    for name, text in STUBS.items():
        (folder / "stubs").mkdir(exist_ok=True)
        (folder / "stubs" / name).write_text(text)


if __name__ == "__main__":
    make_all()
