"""Train and evaluate a classifier with accelerate: accumulated gradients, a schedule, metrics, a file of weights."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    set_seed(1)
    net = model()
    x = torch.randn(154, 8)
    y = x[:, :4].argmax(-1)
    train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=options.batch_size, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    num_updates = options.epochs * len(train_loader) // accelerator.gradient_accumulation_steps
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (num_updates + 2)))
    net, train_loader, val_loader = accelerator.prepare(net, train_loader, val_loader)
    optimizer = accelerator.prepare(optimizer)
    scheduler = accelerator.prepare(scheduler)
    set_seed(1, device_specific=True)
    for _ in range(options.epochs):
        net.train()
        for features, targets in train_loader:
            with accelerator.accumulate(net):
                loss = cross_entropy(net(features), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        net.eval()
        hits = []
        for features, targets in val_loader:
            with torch.no_grad():
                hit = net(features).argmax(-1) == targets
            hits.append(accelerator.gather_for_metrics(hit))
        accelerator.print("accuracy", torch.cat(hits).float().mean().item())
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(net).state_dict(), "accelerated.pt")
    accelerator.wait_for_everyone()
    loaded = model()
    loaded.load_state_dict(torch.load("accelerated.pt"))


if __name__ == "__main__":
    main()
