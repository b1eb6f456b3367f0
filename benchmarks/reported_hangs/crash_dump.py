# illinois-ceesd/mirgecom#80: the state of one rank fails its health check in a step; the driver catches that and writes
# a last visualization, which all ranks would have to write together.
import torch
import torch.distributed as dist


class HealthCheckError(Exception):
    pass


class Discretization:
    def __init__(self, rank):
        self.rank, self.world = rank, dist.get_world_size()

    def write_viz(self, step, state):
        pieces = [None] * self.world if self.rank == 0 else None
        dist.gather_object((step, float(state.mean())), pieces, dst=0)  # here
        if self.rank == 0:
            with open(f"viz-{step}.txt", "w") as file:
                file.write(repr(pieces))


class Simulation:
    def __init__(self, discr):
        self.discr, self.state = discr, torch.ones(10)

    def health_check(self, step):
        if self.state.min() < 0:  # here
            raise HealthCheckError(f"negative pressure in step {step}")  # here

    def global_dt(self):
        dt = 1 / self.state.abs().max()
        dist.all_reduce(dt, op=dist.ReduceOp.MIN)  # here
        return dt

    def advance(self, step):
        self.state += 0.01 * self.global_dt()  # here
        if (self.discr.rank, step) == (1, 7):
            self.state[3] -= 2
        self.health_check(step)  # here
        if step % 5 == 0:
            self.discr.write_viz(step, self.state)

    def run(self, steps):
        step = 0
        try:
            for step in range(1, steps + 1):
                self.advance(step)  # here
        except HealthCheckError:  # here
            self.discr.write_viz(step, self.state)  # here
            raise


def main():
    dist.init_process_group("gloo")
    Simulation(Discretization(dist.get_rank())).run(steps=20)  # here
    dist.destroy_process_group()


main()
