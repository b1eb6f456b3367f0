# LiuY1Chen/OOTDiffusion-train#8: some parameters of the wrapped model never take part in the loss, on any rank.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class OutfittingUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(6, 10), nn.Linear(10, 6)
        self.conv_out = nn.Linear(6, 4)

    def forward(self, latents):
        hidden = torch.tanh(self.down(latents))
        features = self.up(hidden)
        return features, self.conv_out(features)


class Trainer:
    def __init__(self):
        self.unet = DistributedDataParallel(OutfittingUNet())
        self.optimizer = torch.optim.AdamW(self.unet.parameters(), lr=1e-4)

    def training_step(self, latents):
        spatial_features, _ = self.unet(latents)  # here
        loss = spatial_features.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    for _ in range(8):
        trainer.training_step(torch.randn(3, 6))  # here
    dist.destroy_process_group()


main()
