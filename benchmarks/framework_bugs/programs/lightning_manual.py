"""Train with Lightning's manual optimization: two backward passes for each step, on samples in a fixed order."""

import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def training_step(self, batch, index):
        x, y = batch
        optimizer = self.optimizers()
        loss = mse_loss(self.net(x), y)
        self.manual_backward(loss / 2)
        if index % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    L.seed_everything(1)
    model = Regression()
    x = torch.randn(96, 8)
    loader = DataLoader(TensorDataset(x, x[:, :1] * 2), batch_size=options.batch_size)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
