"""Call `frog.record` from the trainers of other libraries, at each of their optimizer steps.

    trainer = transformers.Trainer(..., callbacks=[frog.observe.callbacks.for_transformers()])
    trainer = lightning.Trainer(..., callbacks=[frog.observe.callbacks.for_lightning()])
    accelerator = accelerate.Accelerator(log_with=frog.observe.callbacks.for_accelerate())

Each function imports its library when it is called, and each rank records its own numbers where the library has them.
"""

from __future__ import annotations

from typing import Any

from frog.observe.record import record


def for_transformers() -> Any:
    """Return a `transformers.TrainerCallback`.

    It records the numbers that the Trainer logs: set `logging_steps=1` for every step. The Trainer averages the loss
    over the ranks, and only its main process logs, so only rank 0 records numbers; the other ranks record their steps.
    """
    from transformers import TrainerCallback

    class FrogCallback(TrainerCallback):
        """Records the steps of a transformers Trainer."""

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **rest: Any) -> None:
            if logs and "loss" in logs:
                names = ("loss", "grad_norm", "learning_rate")
                record(state.global_step, **{name: logs.get(name) for name in names})

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if not state.is_world_process_zero:
                record(state.global_step)

    return FrogCallback()


def for_lightning() -> Any:
    """Return a `lightning.Callback`: it records the loss that `training_step` returns, on each rank."""
    from lightning.pytorch import Callback

    class FrogCallback(Callback):  # type: ignore[misc]
        """Records the steps of a Lightning Trainer."""

        _last = 0

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == self._last:  # a micro-batch of gradient accumulation
                return
            self._last = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
            record(trainer.global_step, loss=loss, learning_rate=rates[0] if rates else None)

    return FrogCallback()


def for_accelerate() -> Any:
    """Return a tracker for `accelerate.Accelerator(log_with=...)`.

    It records what the program passes to `accelerator.log({"loss": ...}, step=...)`: `loss`, `grad_norm` and
    `learning_rate` (or `lr`), on each rank.
    """
    from accelerate.tracking import GeneralTracker

    class FrogTracker(GeneralTracker):  # type: ignore[misc]
        """Records what an accelerate program logs."""

        name = "frog"
        requires_logging_directory = False
        main_process_only = False

        @property
        def tracker(self) -> None:
            return None

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            return None

        def log(self, values: dict[str, Any], step: int | None = None, **rest: Any) -> None:
            if step is None:
                return
            rate = values.get("learning_rate", values.get("lr"))
            record(step, loss=values.get("loss"), grad_norm=values.get("grad_norm"), learning_rate=rate)

    return FrogTracker()
