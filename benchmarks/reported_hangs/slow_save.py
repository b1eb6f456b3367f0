# mosaicml/llm-foundry#733: the first rank takes much longer to save a large checkpoint than the others wait for it in
# the next collective.
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class RemoteUploader:
    """Uploads a file in parts, which a slow link limits."""

    def __init__(self, parts, seconds):
        self.parts, self.seconds = parts, seconds

    def upload(self, name):
        for part in range(self.parts):
            with open(f"{name}.part{part}", "wb") as file:
                file.write(bytes(1000))
            time.sleep(self.seconds)  # here


class CheckpointSaver:
    def __init__(self, uploader):
        self.uploader = uploader

    def fit_end(self, weights):
        if dist.get_rank() == 0:
            torch.save(weights, "latest.pt")
            self.uploader.upload("latest")  # here


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    saver, weights = CheckpointSaver(RemoteUploader(parts=60, seconds=1.0)), torch.zeros(14)
    for _ in range(6):
        gradient = torch.randn(14)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
    saver.fit_end(weights)  # here
    dist.all_reduce(weights)
    dist.destroy_process_group()


main()
