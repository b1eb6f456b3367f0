# cure-lab/MagicDrive#91: a sample of one rank lacks a key, which its DataLoader's worker finds out.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class SceneDataset(Dataset):
    def __init__(self, count):
        self.infos = [{"token": f"scene{number:02d}", "boxes": number % 3} for number in range(count)]
        del self.infos[13]["boxes"]

    def __len__(self):
        return len(self.infos)

    def __getitem__(self, index):
        info = self.infos[index]
        return torch.full((4,), float(index)), info["boxes"]  # here


def main():
    dist.init_process_group("gloo")
    dataset = SceneDataset(24)
    sampler = DistributedSampler(dataset, shuffle=False)
    train_dataloader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for features, boxes in train_dataloader:  # here
        loss = nn.functional.cross_entropy(model(features), boxes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
