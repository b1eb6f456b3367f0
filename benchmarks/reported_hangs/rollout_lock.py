# Necther/Embodied-Intelligent-Imitation-Learning-Framework#185: episodes are sampled in a pool of threads; one ends by
# an error while it holds the lock of the data, which the main thread takes before it looks at the future.
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


class OnlineDataset:
    def __init__(self):
        self.lock, self.frames = threading.Lock(), []

    def sample(self, count):
        with self.lock:  # here
            return torch.stack([self.frames[number % len(self.frames)] for number in range(count)])


class Rollout:
    def __init__(self, dataset, rank):
        self.dataset, self.rank = dataset, rank

    def act(self, episode):
        if (self.rank, episode) == (1, 2):
            raise RuntimeError("the environment lost its simulator")  # here
        return torch.randn(4)

    def run(self, episode):
        self.dataset.lock.acquire()  # here
        self.dataset.frames.append(self.act(episode))  # here
        self.dataset.lock.release()


class OnlineTrainer:
    def __init__(self, dataset):
        self.dataset, self.weights = dataset, torch.zeros(4)

    def update(self):
        batch = self.dataset.sample(6)  # here
        gradient = batch.mean(0)
        dist.all_reduce(gradient)  # here
        self.weights -= 0.1 * gradient


def main():
    dist.init_process_group("gloo")
    dataset = OnlineDataset()
    rollout, trainer = Rollout(dataset, dist.get_rank()), OnlineTrainer(dataset)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(rollout.run, 0).result()
        for episode in range(1, 6):
            future = pool.submit(rollout.run, episode)
            trainer.update()  # here
            trainer.update()  # here
            future.result()
    dist.destroy_process_group()


main()
