# huggingface/accelerate#2690: the main process saves, and only the others wait for everyone.
import pathlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build(accelerator):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=4)
    return accelerator.prepare(model, optimizer, loader)


def save(accelerator, model, folder):
    if accelerator.is_main_process:  # here
        folder.mkdir(exist_ok=True)
        state = accelerator.unwrap_model(model).state_dict()
        torch.save(state, folder / "model.pt")
    else:  # here
        accelerator.wait_for_everyone()  # here


def main():
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = build(accelerator)
    done = 0
    for epoch in range(3):
        for (x,) in loader:
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                accelerator.backward(loss)  # here
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done % 4 == 0:
                save(accelerator, model, pathlib.Path(f"step_{done}"))  # here
        accelerator.print(f"epoch {epoch}")


main()
