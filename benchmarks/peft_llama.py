"""Train LoRA adapters of Llama 3 8B with transformers and PEFT; `planner_kinds.py --peft` records it."""

import argparse

import peft
import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--targets", default="all-linear")
parser.add_argument("--recompute", action="store_true", help="recompute each layer in the backward pass")
parser.add_argument("--seq-len", type=int, default=2048)
args = parser.parse_args()

torch.set_default_device("cuda")
config = transformers.LlamaConfig(
    num_hidden_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=128256,
    use_cache=False,
)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
targets = args.targets if args.targets == "all-linear" else args.targets.split(",")
model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=targets, task_type="CAUSAL_LM"))
if args.recompute:
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
ids = torch.zeros(1, args.seq_len, dtype=torch.long)
for _ in range(3):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
