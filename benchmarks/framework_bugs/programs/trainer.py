"""Fine-tune a small Llama on answers with the Trainer of transformers, with a loss and a data loader of its own."""

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
    set_seed,
)

VOCABULARY, LENGTH, WORDS_ADDED = 60, 16, 4


class Answers(Dataset):
    """Prompts of unequal length, each with its answer: only the answer's words are targets."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        words = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
        labels = words.clone()
        labels[: 2 + index % 11] = -100
        return {"input_ids": words, "labels": labels}


class AnswerTrainer(Trainer):
    def get_train_dataloader(self):
        generator = torch.Generator().manual_seed(self.args.seed)
        batch_size = self.args.per_device_train_batch_size
        loader = DataLoader(self.train_dataset, batch_size=batch_size, shuffle=True, generator=generator)
        return self.accelerator.prepare(loader)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        total = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        # the gradients of the ranks are averaged, and the number of words is that of all ranks
        return total * self.accelerator.num_processes / num_items_in_batch


class SmallWeights(TrainerCallback):
    """Keep the weights of the last norm near one."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            model.model.norm.weight.clamp_(0.9999, 1.0001)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    arguments = TrainingArguments(
        "out",
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=2,
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    set_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    model.resize_token_embeddings(VOCABULARY + WORDS_ADDED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = get_linear_schedule_with_warmup(optimizer, 1, options.steps + 2)
    trainer = AnswerTrainer(
        model,
        arguments,
        train_dataset=Answers(),
        optimizers=(optimizer, schedule),
        callbacks=[SmallWeights()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
