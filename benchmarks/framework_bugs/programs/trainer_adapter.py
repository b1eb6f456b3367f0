"""Train adapters and a new head on a small Llama with peft and the Trainer of transformers."""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments, set_seed


class Texts(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        words = torch.randint(1, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words[0] % 3}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    arguments = TrainingArguments(
        "out",
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=1e-2,
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    set_seed(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_labels=3,
        pad_token_id=0,
    )
    model = LlamaForSequenceClassification(config)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["score"])
    model = get_peft_model(model, adapters)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora" in name or "score.modules_to_save" in name or "norm" in name
    Trainer(model, arguments, train_dataset=Texts()).train()


if __name__ == "__main__":
    main()
