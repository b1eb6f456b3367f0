# tier4/Diffusion-Planner#336: a rank raises inside its loop over jobs, while the others wait for it at the barrier.
import torch
import torch.distributed as dist


def simulate(scene):
    if scene["frames"] == 0:
        raise ValueError(f"scene {scene['name']} has no frames")  # here
    return torch.ones(4) * scene["frames"]


def run_jobs(rank, world, scenes):
    results = []
    for scene in scenes[rank::world]:
        results.append(simulate(scene))  # here
    return results


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    scenes = [{"name": f"s{number}", "frames": (number + 3) % 8} for number in range(9)]
    results = run_jobs(rank, world, scenes)  # here
    dist.barrier()
    total = torch.stack(results).sum()
    dist.all_reduce(total)
    dist.destroy_process_group()


main()
