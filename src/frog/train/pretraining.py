"""The workload of `frog train`: all weights of a model, on windows of prepared text."""

from __future__ import annotations

from typing import Any

import torch

from frog.core.errors import NonFiniteError
from frog.core.seeds import derive_seed
from frog.core.units import format_count
from frog.train.data import Loader, PreparedData, Windows, load_tokenizer
from frog.train.evaluate import evaluate
from frog.train.model import TinyTransformer
from frog.train.parallel.strategy import Strategy
from frog.train.sample import sample_text
from frog.train.setup import Run
from frog.train.state import TrainState, take_whole
from frog.train.trained import initial_weights
from frog.train.workload import Workload


class Pretraining(Workload):
    """Next-token prediction, from random weights or those of a trained model."""

    def __init__(self, run: Run, data: PreparedData) -> None:
        config = run.config
        self._run, self._prepared = run, data
        self._heldout = Windows(data.split("heldout"), config.data.sequence_length)
        self._tokenizer = load_tokenizer(data.tokenizer_json)
        # Strategies send rank 0's weights; the same seed makes all ranks equal even before that.
        torch.manual_seed(derive_seed(config.seed, "init"))
        self.renew_model()
        initial_weights(self.model, config.source.init_from)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.flops_per_token = config.model.flops_per_token(config.data.sequence_length)
        self.tokenizer_json = data.tokenizer_json
        self.data = {
            "name": data.name,
            "data_sha256": data.data_sha256,
            "vocab_size": data.vocab_size,
            "train_tokens": data.split("train").num_tokens,
            "heldout_tokens": data.split("heldout").num_tokens,
        }

    def renew_model(self) -> None:
        config = self._run.config
        model = TinyTransformer(config.model, config.train.activation_checkpointing)
        self.model = model.to(self._run.world.device)

    def batches(self, start_step: int) -> Loader:
        run, config = self._run, self._run.config
        return Loader(
            Windows(self._prepared.split("train"), config.data.sequence_length),
            seed=config.seed,
            global_batch_size=config.train.global_batch_size,
            dp_rank=run.mesh.dp.rank,
            dp_size=run.mesh.dp.size,
            grad_accum=config.train.grad_accum,
            start_step=start_step,
            device=run.world.device,
            uneven=config.comm.on_loss == "shrink",
        )

    def describe(self) -> list[str]:
        config, world = self._run.config, self._run.world
        where = f"{world.size} rank{'s' if world.size > 1 else ''} on {world.device.type} in {config.train.precision}"
        headline = (
            f"{self._run.folder.path}: {format_count(self.num_parameters)} parameters, {where}, {config.train.steps} "
            f"steps on {self._prepared.name}, {config.data.sequence_length} tokens per sequence"
        )
        return [headline, config.explain_batch(world.size)]

    def score(self, strategy: Strategy, state: TrainState) -> dict[str, Any]:
        run, config = self._run, self._run.config
        score = evaluate(
            strategy,
            self._heldout,
            self._prepared.token_bytes,
            max_tokens=config.eval.tokens,
            batch_size=config.micro_batch_size(run.mesh.dp.size),
        )
        if run.world.is_main:
            run.log.say(
                f"step {state.step}: held-out loss {score.loss:.4f}, perplexity {score.perplexity:.1f}, "
                f"{score.bits_per_byte:.3f} bits per byte"
            )
        if config.eval.sample_tokens:
            self._sample(strategy, state.step)
        return {"eval": vars(score)}

    def _sample(self, strategy: Strategy, step: int) -> None:
        """Assemble the unsharded model on rank 0 and generate a short text with it."""
        run, config = self._run, self._run.config
        model = TinyTransformer(config.model) if run.world.is_main else None
        take_whole(strategy, model)
        if model is not None:
            prompt, seed = config.eval.prompt, derive_seed(config.seed, "sample", step)
            try:
                text = sample_text(model.eval(), self._tokenizer, prompt, config.eval.sample_tokens, seed=seed)
            except NonFiniteError as error:  # the next step ends the run, on all ranks and with their values
                run.log.say(f"step {step}: no sample: {error.what}")
                return
            run.events.emit("sample", step=step, prompt=prompt, text=text)
