"""Train and validate a classifier with Lightning's Trainer, under DDP."""

import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(self.dropout(x))

    def on_fit_start(self):
        torch.manual_seed(100 + self.global_rank)

    def training_step(self, batch, index):
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        with torch.no_grad():
            self.head.bias.clamp_(-0.1, 0.1)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", cross_entropy(self(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    L.seed_everything(1)
    model = Classifier()
    x = torch.randn(160, 8)
    y = x[:, :4].argmax(-1)
    train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=options.batch_size, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=4,
        accumulate_grad_batches=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        logger=False,
    )
    trainer.fit(model, train_loader, val_loader)


if __name__ == "__main__":
    main()
