# Lightning-AI/pytorch-lightning#16541: at the end of a test, the outputs are gathered where only the first process goes
# on.
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 1)
        self.outputs = []

    def test_step(self, batch, index):
        (x,) = batch
        self.outputs.append(self.fc(x))

    def on_test_epoch_end(self):
        if self.trainer.is_global_zero:  # here
            outputs = self.all_gather(torch.cat(self.outputs))  # here
            print(f"gathered {tuple(outputs.shape)}")


def main():
    lightning.seed_everything(3)
    loader = DataLoader(TensorDataset(torch.randn(16, 5)), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.test(Classifier(), loader, verbose=False)  # here
    torch.distributed.barrier()  # here


main()
