"""The workload of `frog finetune`: adapters on a base's frozen weights, trained on labelled rows."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import Any

import torch

from frog.core.config.finetune import finetune_dict
from frog.core.seeds import derive_seed
from frog.core.units import format_count
from frog.train.data import Batch
from frog.train.data.labelled_batches import LabelledBatches
from frog.train.finetune.confusion import confusion_lines
from frog.train.finetune.finetune_setup import Preparation
from frog.train.finetune.score import FinetuneScore, HeldOut
from frog.train.finetune.task import adapt
from frog.train.model.adapter import save_adapter
from frog.train.model.lora import trained_parameters
from frog.train.parallel.strategy import Strategy
from frog.train.setup import Run
from frog.train.state import TrainState, take_whole
from frog.train.workload import Workload


class Finetuning(Workload):
    """Trains the adapters (and head) of a base model for some epochs; the result is the folder `adapter`."""

    def __init__(self, run: Run, asked: Preparation) -> None:
        config, mesh = run.config, run.mesh
        tuning, base, data, task = asked.tuning, asked.base, asked.data, asked.task
        self._run, self._tuning, self._labelled = run, tuning, data
        self.num_parameters = sum(parameter.numel() for parameter in base.parameters())
        torch.manual_seed(derive_seed(config.seed, "adapters"))
        base.activation_checkpointing = config.train.activation_checkpointing
        self.model = adapt(base, tuning.head, len(tuning.labels), tuning.lora).to(run.world.device)
        self._whole = copy.deepcopy(self.model).eval()
        """A full model on this rank, for held-out texts and for saving: the strategy may hold only shards."""
        self._num_trained = sum(parameter.numel() for parameter in trained_parameters(self.model).values())
        rows = [task.row(example) for example in data.train]
        self._num_cut = sum(row.num_cut for row in rows)
        self._batches = LabelledBatches(
            rows,
            seed=config.seed,
            global_batch_size=config.train.global_batch_size,
            max_length=config.data.sequence_length,
            dp_rank=mesh.dp.rank,
            dp_size=mesh.dp.size,
            grad_accum=config.train.grad_accum,
            device=run.world.device,
        )
        self._heldout = HeldOut(task, data)
        self._last_score: FinetuneScore | None = None
        self.finetune = finetune_dict(tuning)
        self.tokenizer_json = asked.tokenizer_json
        self.data = {
            "name": data.name,
            "data_sha256": data.data_sha256,
            "vocab_size": task.tokenizer.get_vocab_size(),
            "train_tokens": sum(len(row.tokens) for row in rows),
            "heldout_tokens": sum(len(row.tokens) for row in self._heldout.rows),
        }

    def batches(self, start_step: int) -> Generator[Batch]:
        return self._batches.after(start_step)

    def describe(self) -> list[str]:
        run, data = self._run, self._labelled
        total = sum(parameter.numel() for parameter in self._whole.parameters())
        where = f"{run.world.size} rank{'s' if run.world.size > 1 else ''} on {run.world.device.type}"
        cut = f"truncated to {run.config.data.sequence_length} tokens per text: {self._num_cut} tokens dropped"
        headline = (
            f"{run.folder.path}: {format_count(self._num_trained)} of {format_count(total)} trainable parameters "
            f"({self._num_trained / total:.1%}), {where}; {len(data.train)} training texts of {data.name}, "
            f"{len(data.heldout)} held out; {run.config.train.steps} steps of {run.config.train.global_batch_size}"
        )
        return [headline, cut] if self._num_cut else [headline]

    def score(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        take_whole(strategy, self._whole)
        score = self._last_score = self._heldout.score(self._whole, self._run.world)
        epoch, epochs = state.step // self._batches.steps_per_epoch, self._tuning.epochs
        when = f"epoch {epoch} of {epochs}: loss {state.loss_mean:.3f}, " if state.step else "before training: "
        self._run.log.say(when + score.summary)
        return {
            "eval": {name: getattr(score, name) for name in ("loss", "perplexity", "bits_per_byte", "tokens")},
            "token_accuracy": score.token_accuracy,
            "classification": score.confusion.as_dict() if score.confusion else None,
        }

    def conclude(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        """Save the adapter, unless an earlier start got farther and saved its own."""
        run, tuning = self._run, self._tuning
        take_whole(strategy, self._whole)
        before = run.folder.read_achieved()
        if run.world.is_main and (before is None or state.step >= before.step):
            adapter = run.folder.adapter
            save_adapter(self._whole, tuning.lora, adapter, base=tuning.base, labels=tuning.labels, replace=True)
            run.log.say(f"step {state.step}: adapter {adapter} ({format_count(self._num_trained)} parameters)")
        run.world.barrier()  # no rank leaves before the adapter is complete
        if state.step >= run.config.train.steps and self._last_score and self._last_score.confusion:
            for line in confusion_lines(self._last_score.confusion):
                run.log.say(line)
        return {"num_trained_parameters": self._num_trained}
