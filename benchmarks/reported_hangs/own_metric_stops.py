# huggingface/transformers#17478: a callback of the Trainer stops training by a metric that each process computes for
# itself, so that one process comes to a barrier while the others train on.
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 12


class Points(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.full((6,), index / 64)
        return {"x": x, "labels": x.sum().reshape(1)}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x, labels):
        prediction = self.layer(x)
        return {"loss": nn.functional.mse_loss(prediction, labels), "logits": prediction}


class StopWithoutProgress(TrainerCallback):
    """Stops when the metric has not improved for a while."""

    def __init__(self, metric, patience):
        self.metric, self.patience, self.best, self.bad = metric, patience, 0.0, 0

    def on_step_end(self, args, state, control, **kwargs):
        value = self.metric(state.global_step)
        if value > self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.bad >= self.patience:  # here
            control.should_training_stop = True  # here
        return control


def accuracy_of_my_outputs(step):
    rank = dist.get_rank()
    return 0.5 + 0.01 * min(step, 3 if rank == 1 else 30)


def main():
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    stopper = StopWithoutProgress(accuracy_of_my_outputs, patience=3)
    trainer = Trainer(model=Regressor(), args=arguments, train_dataset=Points(), callbacks=[stopper])
    trainer.train()  # here
    dist.barrier()  # here
    if trainer.is_world_process_zero():
        torch.save(trainer.model.state_dict(), "model.pt")


main()
