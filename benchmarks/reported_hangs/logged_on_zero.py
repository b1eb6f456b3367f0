# Lightning-AI/pytorch-lightning#7129: one rank logs a metric at the end of a validation epoch, the others log nothing.
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Detector(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.boxes = []

    def training_step(self, batch, _):
        (x,) = batch
        return self.head(x).square().mean()

    def validation_step(self, batch, _):
        (x,) = batch
        self.boxes.append(self.head(x).detach())

    def on_validation_epoch_end(self):
        results = {}
        if self.global_rank == 0:  # here
            results["box/AP"] = torch.cat(self.boxes).mean()
        self.log_dict(results, sync_dist=True)  # here
        self.boxes.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    lightning.seed_everything(1)
    loader = DataLoader(TensorDataset(torch.randn(24, 6)), batch_size=3)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=True,
    )
    trainer.fit(Detector(), loader, loader)


main()
