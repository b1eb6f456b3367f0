"""The callbacks for trainers of other libraries, with the real libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from frog.core.runs.event_schema import StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.read import read_rank
from frog.observe import callbacks
from frog.observe.record import Recorder


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Record into a new run folder, as the only rank."""
    recorder = Recorder()
    monkeypatch.setattr("frog.observe.record.RECORDER", recorder)
    monkeypatch.setenv("FROG_RUN_DIR", str(tmp_path / "run"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return recorder


def recorded_steps(tmp_path: Path, recorder: Recorder) -> list[StepEvent]:
    recorder.close()
    return read_rank(RunFolder(tmp_path / "run"), 0).of(StepEvent)


class Model(nn.Module):
    """A linear layer that returns its loss as transformers expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


@pytest.mark.slow
def test_steps_of_a_transformers_trainer_are_recorded(tmp_path: Path, recorder: Recorder) -> None:
    transformers = pytest.importorskip("transformers")
    data = [{"x": torch.ones(2) * i, "labels": torch.tensor(float(i))} for i in range(8)]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    trainer = transformers.Trainer(Model(), args, train_dataset=data, callbacks=[callbacks.for_transformers()])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = recorded_steps(tmp_path, recorder)
    assert [event.step for event in found] == [1, 2, 3, 4]
    for event, entry in zip(found, logged, strict=True):
        assert event.loss == pytest.approx(float(entry["loss"]))
        assert event.grad_norm == pytest.approx(float(entry["grad_norm"]))
        assert event.learning_rate == pytest.approx(float(entry["learning_rate"]))


def test_numbers_that_an_accelerate_program_logs_are_recorded(tmp_path: Path, recorder: Recorder) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, log_with=callbacks.for_accelerate())
    accelerator.init_trackers("project", config={"lr": 0.1})
    accelerator.log({"loss": 2.0, "lr": 0.1}, step=1)
    accelerator.log({"loss": 1.0, "grad_norm": 0.5}, step=2)
    accelerator.log({"accuracy": 0.5})
    accelerator.end_training()
    found = recorded_steps(tmp_path, recorder)
    assert [(event.step, event.loss, event.grad_norm, event.learning_rate) for event in found] == [
        (1, 2.0, None, 0.1),
        (2, 1.0, 0.5, None),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning warns about this machine
def test_steps_of_a_lightning_trainer_are_recorded(tmp_path: Path, recorder: Recorder) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.losses = Model(), []

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = self.model(*batch)["loss"]
            self.losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.randn(8))
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=2,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callbacks.for_lightning()],
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    found = recorded_steps(tmp_path, recorder)
    assert [(event.step, event.learning_rate) for event in found] == [(1, 0.01), (2, 0.01)]
    # Lightning divides the loss by the number of micro-batches before it reports it.
    assert [event.loss for event in found] == pytest.approx([module.losses[1] / 2, module.losses[3] / 2])
