"""Train a small language model with DDP: pretrained weights, micro-batches, clipping, a plateau, float16 on demand."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY, LENGTH, WIDTH, IGNORED = 32, 12, 16, -100


class Text(Dataset):
    def __init__(self, num_samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, VOCABULARY, (num_samples, LENGTH + 1), generator=generator)
        self.lengths = torch.randint(3, LENGTH + 1, (num_samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.tokens[index, :-1], self.tokens[index, 1:].clone()
        targets[self.lengths[index] :] = IGNORED
        return inputs, targets


class Language(nn.Module):
    def __init__(self, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.BatchNorm1d(LENGTH) if batch_norm else nn.LayerNorm(WIDTH)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.dropout(self.hidden(self.norm(x)))
        return self.head(x)


class Temperature(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        scaled = logits.float() * self.log_scale.exp()
        return cross_entropy(scaled.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def evaluate(model: nn.Module, loader: DataLoader) -> torch.Tensor:
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs).flatten(0, 1)
            total[0] += cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
            total[1] += (targets != IGNORED).sum()
    dist.all_reduce(total)
    model.train()
    return total[0] / total[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--samples", type=int, default=64)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Language(args.dropout, args.batch_norm)
    if rank == 0:
        torch.save(Language(args.dropout, args.batch_norm).state_dict(), "pretrained.pt")
    dist.barrier()
    pretrained = torch.load("pretrained.pt")
    model.load_state_dict(pretrained)
    model = DistributedDataParallel(model)
    criterion = Temperature()
    criterion = DistributedDataParallel(criterion)
    torch.manual_seed(100 + rank)

    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e-4)
    scaler = torch.amp.GradScaler("cpu", enabled=args.half)
    train, held_out = Text(args.samples, seed=3), Text(32, seed=4)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=4, sampler=sampler)
    evaluation = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        batches = list(loader)
        for first in range(0, len(batches), args.accumulate):
            group = batches[first : first + args.accumulate]
            count = torch.tensor(float(sum((targets != IGNORED).sum() for _, targets in group)))
            dist.all_reduce(count)
            for number, (inputs, targets) in enumerate(group):
                is_last = number == len(group) - 1
                with contextlib.ExitStack() as stack:
                    for wrapper in () if is_last else (model, criterion):
                        stack.enter_context(wrapper.no_sync())
                    with torch.autocast("cpu", torch.float16, enabled=args.half):
                        logits = model(inputs)
                    loss = criterion(logits, targets) * world / count
                    scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 0.05)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        mean = evaluate(model, evaluation)
        plateau.step(mean)
        if rank == 0:
            print(f"epoch {epoch}: {mean:.4f}", flush=True)
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
