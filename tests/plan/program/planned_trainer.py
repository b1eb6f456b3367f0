"""Hugging Face's Trainer on CUDA: `python planned_trainer.py FOLDER`, a small Llama with FSDP in bfloat16."""

import sys

from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

LENGTH, BATCH, ACCUMULATED, LAYERS, WIDTH = 64, 2, 2, 2, 64
sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS, "vocab_size": 512}
model = AutoModelForCausalLM.from_config(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))
ids = list(range(LENGTH))
data = [{"input_ids": ids, "labels": ids, "attention_mask": [1] * LENGTH}] * 1000
args = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=10,
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=ACCUMULATED,
    bf16=True,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
)
Trainer(model=model, args=args, train_dataset=data).train()
