# criteo/tf-yarn#79: the loader keeps its last batch, which is smaller on one rank, and the features of all ranks are
# gathered as if they had equal sizes.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


def gather_features(features):
    gathered = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, features.detach())  # here
    gathered[dist.get_rank()] = features
    return torch.cat(gathered)


class ContrastiveLoss(nn.Module):
    def forward(self, images, texts):
        all_images, all_texts = gather_features(images), gather_features(texts)  # here
        logits = all_images @ all_texts.T
        return nn.functional.cross_entropy(logits, torch.arange(len(logits)))


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 8), nn.Linear(4, 8)

    def forward(self, pixels, tokens):
        return self.image(pixels), self.text(tokens)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = TensorDataset(torch.randn(21, 6), torch.randn(21, 4))
    shard = Subset(dataset, range(rank, len(dataset), world_size))
    loader = DataLoader(shard, batch_size=4)
    model, criterion = DistributedDataParallel(TwoTowers()), ContrastiveLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        for pixels, tokens in loader:
            loss = criterion(*model(pixels, tokens))  # here
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


main()
