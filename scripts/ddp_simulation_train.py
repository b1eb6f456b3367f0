"""The same model, trained by several processes together: data parallelism (DDP), with proof in each rank's log.

    torchrun --nproc_per_node=2 scripts/ddp_simulation_train.py

Every process ("rank") runs this whole file. Each rank holds a copy of the model and trains on different samples. In
each backward pass the ranks average their gradients, so all of them make the same update and the copies stay equal. On
a cluster each rank has a GPU; here it has a share of your CPU, and the rest of this file stays the same.

Afterwards compare logs/rank_0/train.log and logs/rank_1/train.log.
"""

import argparse
import gc
import inspect
import math
import os
import sys
import traceback
from collections import Counter
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads: threads that wait sleep and do not spin

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# The first tutorial script, in the same folder: this script uses its model and three of its functions.
from train_tiny_transformer import CONFIG, TinyTransformer, fingerprint, loss_of, read_batch

from frog.core.config import load_model_config
from frog.core.env import bind_loopback, host_name, world_env
from frog.core.errors import FrogError, UsageError
from frog.core.processes import leave, leave_with_parent
from frog.core.runs.folder import RunFolder
from frog.train.data import Windows, ensure_prepared

# ---- the world -------------------------------------------------------------------------------------------------------


def join_world(timeout_s):
    """Find the other ranks; return this rank's number, the size of the world and this rank's device.

    torchrun describes this process in environment variables: RANK, WORLD_SIZE, LOCAL_RANK, and the address at which all
    ranks connect, MASTER_ADDR and MASTER_PORT. Without torchrun, the world has one rank.
    """
    env = world_env()
    # NCCL moves data between GPUs, with one GPU per rank; gloo moves data between CPUs.
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= env.local_world_size
    device = torch.device("cuda", env.local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    bind_loopback(env.master_addr)  # a laptop's host name often does not resolve: use its loopback interface
    # The timeout limits how long a rank waits for the others in a collective. The default of gloo is half an hour.
    options = {"backend": "nccl" if gpus else "gloo", "timeout": timedelta(seconds=timeout_s)}
    if gpus:
        options["device_id"] = device  # NCCL would guess it from the rank
    if not env.launched:
        options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**options)
    return dist.get_rank(), dist.get_world_size(), device


def gather(value):
    """Return every rank's `value`, in rank order, to every rank. A collective: waits for all ranks."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def make_folder(rank):
    """Create a folder for this run. Rank 0 creates it and sends the path; otherwise each rank would create its own."""
    chosen = [None]
    if rank == 0:
        number = 1
        while (path := Path("runs") / f"ddp_simulation{f'-{number}' if number > 1 else ''}").exists():
            number += 1
        path.mkdir(parents=True)
        RunFolder(path).link_logs()
        chosen = [str(path)]
    dist.broadcast_object_list(chosen, src=0)
    return RunFolder(Path(chosen[0]))


# ---- the data --------------------------------------------------------------------------------------------------------


class Samples(Dataset):
    """The first windows of the training text, by number. A rank reads the windows that its sampler selects."""

    def __init__(self, windows, num_samples):
        self.windows, self.num_samples = windows, num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, sample_id):
        return sample_id


def make_loader(samples, rank, world_size, args):
    """Return a loader of batches of sample numbers for this rank.

    DistributedSampler shuffles all numbers with a seed that every rank knows, then deals them out like cards: rank r
    gets the r-th, the (r + world size)-th and so on. No two ranks get the same number, without any communication.
    """
    if args.forget == "sampler":  # a common mistake: now every rank trains on every sample
        generator = torch.Generator().manual_seed(args.seed)
        return DataLoader(samples, args.batch_size, shuffle=True, generator=generator), None
    sampler = DistributedSampler(samples, num_replicas=world_size, rank=rank, shuffle=True, seed=args.seed)
    return DataLoader(samples, args.batch_size, sampler=sampler), sampler


def prove_step(ids_by_rank, num_padding, last_step):
    """Raise if two ranks got the same sample in this step; return a summary of the step.

    Every rank must get the same number of samples, or the last all-reduce would wait for a rank that has none left.
    So if the number of samples is not a multiple of the world size, DistributedSampler repeats the epoch's first few
    samples at its end.
    """
    counts = Counter(sample for ids in ids_by_rank for sample in ids)
    twice = sorted(sample for sample, count in counts.items() if count > 1)
    if twice and not (last_step and len(twice) <= num_padding):
        where = [rank for rank, ids in enumerate(ids_by_rank) if twice[0] in ids]
        raise RuntimeError(f"sample {twice[0]} went to ranks {where} in one step: the data is not split")
    padded = f" except {twice}, which padding repeats" if twice else ""
    return f"{sum(counts.values())} samples over all ranks, no duplicates{padded}"


def prove_epoch(ids_by_rank, num_samples, num_padding):
    """Raise unless the ranks together used every sample once, and only the padding twice."""
    taken = Counter(sample for ids in ids_by_rank for sample in ids)
    if set(taken) != set(range(num_samples)) or sum(taken.values()) != num_samples + num_padding:
        raise RuntimeError(f"{len(taken)} of {num_samples} samples were used, {sum(taken.values())} times in total")
    again = sorted(sample for sample, count in taken.items() if count > 1)
    padded = f"; padding repeated {again}" if again else ""
    return f"{num_samples} samples, each used by one rank, once{padded}"


# ---- the gradient ----------------------------------------------------------------------------------------------------


class LocalGradient:
    """Measures this rank's own gradient before DDP averages it.

    DDP packs gradients into buckets and averages each bucket as soon as it is full, while the backward pass is still
    running. After backward(), the `.grad` of every weight is already the average. So this class makes DDP call
    `measure_then_average` in place of its all-reduce: at that point the bucket still holds this rank's own gradient.
    """

    def __init__(self):
        self.reset()

    def reset(self):
        self.norms, self.num_bytes = [], 0

    def norm(self):
        return math.hypot(*self.norms)

    def measure_then_average(self, state, bucket):
        gradient = bucket.buffer()
        self.norms.append(gradient.norm().item())
        self.num_bytes += gradient.nbytes
        # Sum over all ranks, then divide. DDP's own hook would not wait here, but continue with the next bucket.
        dist.all_reduce(gradient)
        averaged = torch.futures.Future()
        averaged.set_result(gradient.div_(dist.get_world_size()))
        return averaged


# ---- the loop --------------------------------------------------------------------------------------------------------


def train(rank, world_size, device, windows, config, args, say):
    torch.manual_seed(args.seed)
    model = TinyTransformer(config).to(device)
    # From here on the copies are equal: DDP sends rank 0's weights to all ranks. Small buckets, so that there are some.
    # The rotary angles never change, so DDP need not send them again before each forward pass.
    # (torch 2.11 and earlier call that option broadcast_buffers.)
    known = inspect.signature(DistributedDataParallel).parameters
    sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    ddp = DistributedDataParallel(model, bucket_cap_mb=1, **{sync_buffers: False})
    local = LocalGradient()
    ddp.register_comm_hook(None, local.measure_then_average)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.learning_rate)

    samples = Samples(windows, args.samples)
    loader, sampler = make_loader(samples, rank, world_size, args)
    num_padding = -args.samples % world_size if sampler else 0
    share = f"{len(sampler)} for each of {world_size} ranks" if sampler else "all samples for every rank"
    say(f"{args.samples} samples: {share}, {num_padding} of them padding; {len(loader)} steps per epoch", screen=True)
    step = 0
    for epoch in range(1, args.epochs + 1):
        if sampler and args.forget != "set_epoch":
            sampler.set_epoch(epoch)  # changes the shuffle; without it, every epoch has the order of the first
        epoch_ids = [[] for _ in range(world_size)]
        for ids in loader:
            step += 1
            if rank == args.fail_rank and step == args.fail_step:
                raise RuntimeError(f"rank {rank} fails in step {step}, as requested by --fail-rank and --fail-step")
            inputs, labels = read_batch(windows, ids.numpy(), device)
            local.reset()

            loss = loss_of(ddp, inputs, labels)  # Forward: on this rank's samples
            loss.backward()  #                     Backward, including Reduce: average the gradients
            averaged = math.hypot(*(weight.grad.norm().item() for weight in model.parameters()))
            optimizer.step()  #                    Optimize: the same gradient and update on every rank
            optimizer.zero_grad()  #               Gradient zero

            metrics = {"loss": loss.item(), "gradient norm before": local.norm(), "after": averaged}
            # Lab 2: add a metric of this rank to the dictionary above, and find it in the rank's log.
            weights = fingerprint(dict(model.named_parameters()))
            everyone = gather({"ids": ids.tolist(), "weights": weights, "loss": loss.item()})
            if len({other["weights"] for other in everyone}) > 1:
                raise RuntimeError(f"after step {step} the weights differ: {[other['weights'] for other in everyone]}")
            for taken, other in zip(epoch_ids, everyone, strict=True):
                taken += other["ids"]
            last_step = len(epoch_ids[0]) == len(loader.sampler)
            proof = prove_step([other["ids"] for other in everyone], num_padding, last_step)
            say(f"step {step} | samples {' '.join(map(str, ids.tolist()))} | {proof}")
            numbers = " | ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            say(f"step {step} | {numbers} (buckets: {len(local.norms)}, {local.num_bytes} bytes)")
            say(f"step {step} | weights {weights[:16]} on all {world_size} ranks")
            if step % args.log_every == 0:
                losses = "  ".join(f"{other['loss']:.4f}" for other in everyone)
                say(f"step {step} | loss of ranks 0 to {world_size - 1}: {losses}", screen=True)
        say(f"epoch {epoch} | {prove_epoch(epoch_ids, args.samples, num_padding)}", screen=True)


@record  # writes the traceback of a failing rank to the file that torchrun reads
def main():
    args = read_arguments()
    leave_with_parent()  # if torchrun is killed, this rank ends too
    config = load_model_config(args.config)
    data = ensure_prepared("python-docs" if args.data is None else args.data)
    windows = Windows(data.split("train"), args.sequence_length)
    rank, world_size, device = join_world(args.timeout_s)
    check(args, world_size, windows, config, data)
    folder = make_folder(rank)
    folder.rank_log(rank).parent.mkdir(parents=True)
    # Each rank writes its own log. torchrun can redirect output too (--redirects), but not on macOS.
    with folder.rank_log(rank).open("w", buffering=1) as log:

        def say(line, screen=False):
            log.write(f"rank {rank} | {line}\n")
            if screen and rank == 0:  # only one rank prints, or the terminal would show every line N times
                print(line, flush=True)

        where = f"pid {os.getpid()} on {host_name()}, {device}, {dist.get_backend()}"
        say(f"rank {rank} of a world of {world_size}: {where}")
        try:
            train(rank, world_size, device, windows, config, args, say)
        except Exception as error:
            # The failed rank logs the cause; the ranks that waited for it log the error that they saw.
            say(f"FAILED: {type(error).__name__}: {str(error).splitlines()[0]}\n{traceback.format_exc()}")
            raise
        say(f"look at {', '.join(str(folder.rank_log(other)) for other in range(world_size))}", screen=True)
    # A DDP model contains reference cycles. If Python freed it at exit, after the process group that it uses, the
    # process could crash.
    gc.collect()
    dist.destroy_process_group()


# ---- the command -----------------------------------------------------------------------------------------------------


def check(args, world_size, windows, config, data):
    """Reject invalid settings before the first step, identically on every rank."""
    if args.fail_rank is not None and not 0 <= args.fail_rank < world_size:
        raise UsageError(f"--fail-rank {args.fail_rank}: the ranks are 0 to {world_size - 1}", "choose one of them")
    if not world_size <= args.samples <= len(windows):
        limits = f"between {world_size}, one per rank, and {len(windows)}, the number of windows in the text"
        raise UsageError(f"--samples {args.samples}: must be {limits}", "choose a number in this range")
    if data.vocab_size > config.vocab_size:
        raise UsageError(f"the text has {data.vocab_size} tokens, the model's vocab_size={config.vocab_size}")
    if args.sequence_length > config.max_position_embeddings:
        most = config.max_position_embeddings
        raise UsageError(f"--sequence-length {args.sequence_length} is more than max_position_embeddings={most}")


def positive(text):
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=positive, default=2)
    parser.add_argument("--samples", type=positive, default=320, help="how many the ranks share; default: 320")
    parser.add_argument("--batch-size", type=positive, default=8, help="samples per rank and step; default: 8")
    parser.add_argument("--sequence-length", type=positive, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--log-every", type=positive, default=10, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--data", metavar="NAME", help="a prepared data set; default: python-docs")
    parser.add_argument("--config", type=Path, default=CONFIG, help="the model file; default: config/config.json")
    parser.add_argument("--timeout-s", type=positive, default=60, help="seconds that a rank waits for the others")
    parser.add_argument("--fail-rank", type=int, metavar="RANK", help="make this rank fail ...")
    parser.add_argument("--fail-step", type=positive, default=5, metavar="STEP", help="... in this step; default: 5")
    parser.add_argument("--forget", choices=["sampler", "set_epoch"], help="omit one call, and see what breaks")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except FrogError as error:
        if world_env().is_main:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    leave(0)  # exit immediately: at a normal exit, torch's threads may still be running and crash
