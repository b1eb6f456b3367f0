# deepspeedai/DeepSpeed#8390: only one data-parallel group generates, and the loop that keeps its ranks together reduces
# over the whole world.
import torch
import torch.distributed as dist


class Topology:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        half = self.world // 2
        self.groups = [dist.new_group(list(range(half))), dist.new_group(list(range(half, self.world)))]
        self.index = self.rank // half

    @property
    def dp_group(self):
        return self.groups[self.index]


class Generator:
    def __init__(self, topology, most=6):
        self.topology, self.most = topology, most

    def forward(self, token):
        x = torch.full((10,), float(token))
        dist.all_reduce(x, group=self.topology.dp_group)
        return int(x[0]) % 7

    def generate(self, token, synced_gpus=True):
        unfinished, tokens = True, [token]
        while True:
            if synced_gpus:
                flag = torch.tensor(float(unfinished))
                dist.all_reduce(flag)  # here
                if flag == 0:
                    break
            tokens.append(self.forward(tokens[-1]))
            unfinished = len(tokens) < self.most
        return tokens


class Trainer:
    def __init__(self, topology):
        self.topology, self.generator = topology, Generator(topology)

    def step(self, number):
        loss = torch.ones(21) * number
        dist.all_reduce(loss, group=self.topology.dp_group)  # here
        return loss

    def rollout(self, number):
        if self.topology.index == number % 2:  # here
            return self.generator.generate(number)  # here
        return []


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(Topology())
    for number in range(4):
        trainer.step(number)
        trainer.rollout(number)  # here
        dist.barrier()  # here
    dist.destroy_process_group()


main()
