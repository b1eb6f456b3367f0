"""Write what picotron needs without a GPU and without a download: stand-ins, tokens, weights and configurations."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, INNER, LAYERS, VOCABULARY, LENGTH = 32, 64, 2, 64, 32

Path("wandb.py").write_text('''
import torch
import picotron.process_group_manager as pgm

torch.cuda.synchronize = lambda: None
DIMENSIONS = {"embedding": 0, "final_proj": 0, "q_proj": 0, "k_proj": 0, "v_proj": 0, "up_proj": 0, "gate_proj": 0}
DIMENSIONS |= {"out_proj": 1, "down_proj": 1}


def same_weights(model):
    """Draw every weight as a whole, from its name, and keep this rank's part."""
    group = pgm.process_group_manager
    for name, each in model.named_parameters():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind in DIMENSIONS:
            shape, dimension = list(each.shape), DIMENSIONS[kind]
            shape[dimension] *= group.tp_world_size
            draws = torch.Generator().manual_seed(sum(map(ord, name)))
            whole = torch.randn(shape, generator=draws) * 0.1
            each.data.copy_(whole.chunk(group.tp_world_size, dimension)[group.tp_rank])
''')
for name in ("flash_attn.flash_attn_interface", "flash_attn.layers.rotary", "flash_attn.ops.triton.layer_norm"):
    path = Path(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("flash_attn_func = apply_rotary_emb = layer_norm_fn = None\n")
Path("datasets.py").write_text(
    """
import torch


class Tokens(list):
    column_names = ["text"]

    def map(self, *args, **kwargs):
        return self


class Features(dict): ...
class Sequence:
    def __init__(self, *args, **kwargs): ...
Value = Sequence


def load_dataset(*args, **kwargs):
    draws = torch.Generator().manual_seed(7)
    rows = torch.randint(0, VOCABULARY, (256, LENGTH + 1), generator=draws).cumsum(1) % VOCABULARY
    return Tokens({"input_ids": row.tolist()} for row in rows)
""".replace("VOCABULARY", str(VOCABULARY)).replace("LENGTH", str(LENGTH))
)
Path("transformers.py").write_text(f"""
from types import SimpleNamespace


class AutoTokenizer:
    @staticmethod
    def from_pretrained(name):
        return None


class AutoConfig:
    @staticmethod
    def from_pretrained(name):
        return SimpleNamespace(
            hidden_size={WIDTH}, intermediate_size={INNER}, num_hidden_layers={LAYERS}, num_attention_heads=4,
            num_key_value_heads=4, vocab_size={VOCABULARY}, rms_norm_eps=1e-5, rope_theta=10000.0,
        )
""")
Path("huggingface_hub.py").write_text("class constants: ...\n\n\ndef snapshot_download(*args, **kwargs): ...\n")

square, up, down = (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)
shapes = {"self_attn.q_proj": square, "self_attn.k_proj": square, "self_attn.v_proj": square}
shapes |= {"self_attn.o_proj": square, "mlp.up_proj": up, "mlp.gate_proj": up, "mlp.down_proj": down}
shapes |= {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
weights = {f"model.layers.{n}.{name}.weight": torch.ones(each) for n in range(LAYERS) for name, each in shapes.items()}
weights |= {"model.embed_tokens.weight": torch.ones(VOCABULARY, WIDTH), "model.norm.weight": torch.ones(WIDTH)}
Path("hf_model_safetensors").mkdir()
save_file(weights, "hf_model_safetensors/model.safetensors")

for kind in ("tp", "cp", "pp", "dp"):
    for degree in (1, 2):
        config = {
            "distributed": {f"{each}_size": degree if each == kind else 1 for each in ("tp", "cp", "pp", "dp")},
            "model": {"name": "tokens", "use_fused_adam": False},
            "training": {
                "seed": 42,
                "learning_rate": 0.003,
                "total_train_steps": 6,
                "seq_length": LENGTH,
                "micro_batch_size": 4 // (degree if kind == "dp" else 1),
                "gradient_accumulation_steps": 2,
                "max_tokens": None,
            },
            "dataset": {"name": "words", "num_workers": 0, "num_proc": 1},
            "checkpoint": {"save_dir": "saved", "save_frequency": 3, "load_path": ""},
            "logging": {"use_wandb": False},
            "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "0"},
        }
        config["distributed"] |= {"pp_engine": "afab", "use_cpu": True}
        config["environment"]["HF_TOKEN"] = "none"
        Path(f"{kind}{degree}.json").write_text(json.dumps(config))
