# openai/baselines#695: the statistics of observations are reduced in each step of an environment, whose episodes differ
# in length between the ranks.
import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

EPISODES = {0: (9, 7, 8), 1: (9, 7, 8), 2: (9, 5, 8)}  # rank: lengths


class Transition(NamedTuple):
    observation: torch.Tensor
    reward: float
    done: bool


class Pendulum:
    def __init__(self, rank):
        self.lengths, self.episode = EPISODES[rank], -1

    def reset(self):
        self.episode += 1
        self.time = 0
        return torch.zeros(3)

    def step(self, action):
        self.time += 1
        angle = math.sin(self.time) + float(action)
        return Transition(torch.tensor([angle, angle**2, 1.0]), -abs(angle), self.time == self.lengths[self.episode])


class RunningMeanStd:
    def __init__(self, size):
        self.sum, self.count = torch.zeros(size), 0

    def update(self, observation):
        batch = torch.cat([observation, torch.ones(1)])
        dist.all_reduce(batch)  # here
        self.sum += batch[:-1]
        self.count += int(batch[-1])

    def normalize(self, observation):
        return observation - self.sum / max(1, self.count)


def rollout(environment, policy, statistics):
    observation, done, rewards = environment.reset(), False, []
    while not done:  # here
        statistics.update(observation)  # here
        action = policy(statistics.normalize(observation)).tanh()
        observation, reward, done = environment.step(action)  # here
        rewards.append(reward)
    return sum(rewards)


def main():
    dist.init_process_group("gloo")
    environment, policy = Pendulum(dist.get_rank()), nn.Linear(3, 1)
    statistics = RunningMeanStd(3)
    for _ in range(3):
        score = rollout(environment, policy, statistics)  # here
        policy.weight.grad = torch.full((1, 3), score)
        dist.all_reduce(policy.weight.grad)  # here
    dist.destroy_process_group()


main()
