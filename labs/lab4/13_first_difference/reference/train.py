"""Train with fully_shard. The loss of a step is the mean over all of its targets, on all ranks."""

import argparse

import torch
import torch.distributed as dist
from task import PADDING, Model, batch_of
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.functional import cross_entropy


def add_gradients(model: FSDPModule) -> None:
    """Let backward add the ranks' gradients. By default, fully_shard averages them."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can only add


def train(args: argparse.Namespace) -> Model:
    """Train and return the sharded model. Every rank calls this."""
    torch.manual_seed(args.seed)
    model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    add_gradients(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        tokens, targets = batch_of(step, args.batch_size, args.seed)
        num_targets = (targets != PADDING).sum()
        dist.all_reduce(num_targets)
        logits = model(tokens)
        loss = cross_entropy(logits, targets.flatten(), ignore_index=PADDING, reduction="sum") / num_targets
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total = loss.detach()  # this rank's part of the mean
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step + 1} loss {total.item():.4f}", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="texts on each rank")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
