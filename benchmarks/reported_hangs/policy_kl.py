# huggingface/trl#254: the inner loop of an update ends when the policy has moved too far, which every rank measures on
# its own samples.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class PPOTrainer:
    def __init__(self, policy, ppo_epochs=2, target_kl=1e-4):
        self.policy = DistributedDataParallel(policy)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.05)
        self.ppo_epochs, self.target_kl = ppo_epochs, target_kl

    def train_minibatch(self, queries, old_logprobs, advantages):
        logprobs = self.policy(queries)
        loss = -(advantages * logprobs).mean()
        loss.backward()  # here
        self.optimizer.step()
        self.optimizer.zero_grad()
        return 0.5 * (logprobs - old_logprobs).detach().square().mean()

    def step(self, queries):
        with torch.no_grad():
            old_logprobs = self.policy.module(queries)
        early_stop = False
        for _ in range(self.ppo_epochs):
            for start in range(0, len(queries), 8):  # here
                batch = slice(start, start + 8)
                policykl = self.train_minibatch(  # here
                    queries[batch], old_logprobs[batch], torch.ones(8, 1)
                )
                if policykl > 1.5 * self.target_kl:  # here
                    early_stop = True
                    break  # here
            if early_stop:
                break
        return policykl

    def log_stats(self, policykl):
        stats = torch.stack([policykl, torch.tensor(1.0)])
        dist.all_reduce(stats)  # here
        return stats[0] / stats[1]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)
    trainer = PPOTrainer(nn.Linear(6, 1, bias=False))
    scale = 1.0 if rank == 1 else 1e-3
    for _ in range(5):
        policykl = trainer.step(scale * torch.rand(32, 6))  # here
        trainer.log_stats(policykl)  # here
    dist.destroy_process_group()


main()
