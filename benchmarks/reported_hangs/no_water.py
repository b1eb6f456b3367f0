# prism-science/WaterFlow#94 (a review in it): a batch without water molecules is skipped by the rank that has it, which
# leaves out its backward.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class FlowModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.velocity = nn.Linear(3, 16), nn.Linear(16, 3)

    def forward(self, positions):
        return self.velocity(torch.tanh(self.encoder(positions)))


def loader(rank):
    waters_per_batch = [[5, 3, 4, 6, 2, 4], [4, 6, 0, 5, 3, 2]][rank]
    for num_waters in waters_per_batch:
        yield {"water": torch.randn(num_waters, 3), "protein": torch.randn(8, 3)}


def train_epoch(model, batches, optimizer):
    loss_sum, skipped_batches = torch.zeros(2), 0
    for batch in batches:
        if batch["water"].numel() == 0:  # here
            skipped_batches += 1
            continue  # here
        noise = torch.randn_like(batch["water"])
        loss = (model(batch["water"] + noise) - noise).square().mean()  # here
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # here
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss_sum += torch.stack([loss.detach(), torch.tensor(1.0)])
    dist.all_reduce(loss_sum)  # here
    return (loss_sum[0] / loss_sum[1]).item(), skipped_batches


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(FlowModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        loss, skipped = train_epoch(model, loader(rank), optimizer)  # here
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, {skipped} batches skipped")
    dist.destroy_process_group()


main()
