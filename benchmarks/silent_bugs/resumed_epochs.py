"""Programs after public reports of a resume within an epoch that repeats samples, or skips some.

They were written on 2026-11-30, before the rule `resume-samples`. Each runs twice: the first run is interrupted within
an epoch, after it has saved a checkpoint in its folder; the second finds the checkpoint and resumes. `first_try` is
what `frog check` said when the rule saw both runs first. A comment `# bug` marks the lines that a right answer names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from silent_case import Case, rank, size, update
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset
from transformers import Trainer, TrainingArguments

SAMPLES, BATCH = 64, 4
"""8 batches in an epoch on each of two ranks."""
EPOCHS, STOP = 3, 11
"""The first run ends after this many batches: 3 of the second epoch."""


def regression() -> nn.Sequential:
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))


def points() -> TensorDataset:
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, x[:, :1] * 2)


def checkpoint_in(folder: Path) -> Path:
    return folder / f"last_{rank()}.pt"


def restored(folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the model and the optimizer if there is a checkpoint; return its numbers."""
    if not checkpoint_in(folder).exists():
        return {}
    found: dict[str, Any] = torch.load(checkpoint_in(folder))
    net.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return found


def save(folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer, **numbers: int | torch.Tensor) -> None:
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), **numbers}
    torch.save(state, checkpoint_in(folder))


def begins_the_epoch_again(bug: bool, folder: Path) -> None:
    """Lightning-AI/pytorch-lightning #1182: the place within the epoch is saved, and the epoch begins again."""
    data = points()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = restored(folder, net, optimizer)
    first, begin, step = found.get("epoch", 0), found.get("batch_idx", -1) + 1, 0
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):  # bug
            if not bug and epoch == first and index < begin:
                continue
            mse_loss(net(x), y).backward()
            update(optimizer)
            step += 1
            if not found and step == STOP:
                return save(folder, net, optimizer, epoch=epoch, batch_idx=index)
    return None


def replays_the_order_of_its_seed(bug: bool, folder: Path) -> None:
    """kyutai-labs/pocket-tts #287: each start replays the permutation of one seed while the step continues."""
    data = points()
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    found = restored(folder, net, optimizer)
    step = found.get("step", 0)
    order = torch.Generator().manual_seed(5 + rank())
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, generator=order)
    skip = 0 if bug else step % len(loader)
    while step < EPOCHS * len(loader):
        if not bug:
            order.manual_seed(5 + rank() + 100 * (step // len(loader)))
        for x, y in islice(loader, skip, None):  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)
            step += 1
            if not found and step == STOP + 8:
                return save(folder, net, optimizer, step=step)
        skip = 0
    return None


def iterates_over_the_epoch_fully(bug: bool, folder: Path) -> None:
    """borisdayma/dalle-mini #105: the right epoch is restored, and what of it was trained is trained again."""
    data = points()
    own = torch.utils.data.Subset(data, range(rank(), SAMPLES, size()))
    loader = DataLoader(own, batch_size=BATCH)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    found = restored(folder, net, optimizer)
    state = {"epoch": 0, "global_step": 0} | {key: found[key] for key in ("epoch", "global_step") if key in found}
    for epoch in range(state["epoch"], EPOCHS):
        seen = 0 if bug else max(0, state["global_step"] - epoch * len(loader))
        for x, y in islice(loader, seen, None):  # bug
            optimizer.zero_grad()
            mse_loss(net(x), y).backward()
            optimizer.step()
            state["global_step"] += 1
            if not found and state["global_step"] == STOP:
                return save(folder, net, optimizer, epoch=epoch, global_step=state["global_step"])
    return None


def skips_a_batch_for_each_update(bug: bool, folder: Path) -> None:
    """huggingface/transformers #5605: of two micro-batches in a step, one is skipped for each step."""
    data = points()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // 2, sampler=sampler)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = restored(folder, net, optimizer)
    global_step = found.get("global_step", 0)
    updates = len(loader) // 2
    first = global_step // updates
    skip = global_step % updates
    if not bug:
        skip *= 2
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):  # bug
            if epoch == first and index < skip:
                continue
            (mse_loss(net(x), y) / 2).backward()
            if index % 2 == 0:
                continue
            update(optimizer)
            global_step += 1
            if not found and global_step == STOP:
                return save(folder, net, optimizer, global_step=global_step)
    return None


def restores_all_but_the_loader(bug: bool, folder: Path) -> None:
    """huggingface/accelerate #1130: `load_state` restores what was saved, and not the place in the loader."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    net = regression()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(points(), batch_size=BATCH, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    place, step = folder / "state", 0
    resumes = place.exists()
    accelerator.wait_for_everyone()
    if resumes:
        accelerator.load_state(str(place))
        step = STOP
    first = step // len(loader)
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        own = loader
        if resumes and not bug and epoch == first:
            own = skip_first_batches(loader, step % len(loader))
        for x, y in own:  # bug
            accelerator.backward(mse_loss(net(x), y))
            update(optimizer)
            step += 1
            if not resumes and step == STOP:
                accelerator.save_state(str(place))
                return


class Pairs(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.x, self.y = points().tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[place], "labels": self.y[place]}


class Predicts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = regression()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        return {"loss": mse_loss(out, labels), "logits": out}


def ignores_the_data_that_it_saw(bug: bool, folder: Path) -> None:
    """transformers' `ignore_data_skip`: the Trainer resumes within an epoch, and draws from its first batch."""
    place = folder / "trainer"
    resumes = (place / f"checkpoint-{STOP}").exists()
    dist.barrier()
    arguments = TrainingArguments(
        str(place),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        max_steps=EPOCHS * 8 if resumes else STOP,
        save_steps=STOP,
        ignore_data_skip=bug,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=Predicts(), args=arguments, train_dataset=Pairs())
    trainer.train(resume_from_checkpoint=str(place / f"checkpoint-{STOP}") if resumes else None)  # bug


def restarts_within_an_epoch(bug: bool, folder: Path) -> None:
    """Lightning-AI/pytorch-lightning #19764: a checkpoint within an epoch, and a loader without a state."""
    import lightning.pytorch as lightning  # it sets variables of the process that imports it, as the tests' own one

    class Fits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = regression()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    path = folder / "last.ckpt"
    resumes = path.exists()
    dist.barrier()
    stop = STOP if bug else 16
    keeps = lightning.callbacks.ModelCheckpoint(
        folder, filename="last", every_n_train_steps=stop, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=size(),
        max_steps=EPOCHS * 8 if resumes else stop,
        max_epochs=-1,
        callbacks=[] if resumes else [keeps],
        enable_checkpointing=not resumes,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = DataLoader(points(), batch_size=BATCH, shuffle=True)
    trainer.fit(Fits(), loader, ckpt_path=path if resumes else None)  # bug


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, begin: int = 0) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(rank())
        for place in range(4 * SAMPLES):
            x = torch.randn(6, generator=generator)
            if place >= self.begin:
                yield x, x[:1] * 2


def reads_the_stream_from_the_start(bug: bool, folder: Path) -> None:
    """0-5788719150923125/praxis #30: a stream has no state, and a resume reads it from its beginning."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = restored(folder, net, optimizer)
    step = found.get("step", 0)
    loader = DataLoader(Stream(0 if bug else step * BATCH), batch_size=BATCH)
    for x, y in loader:  # bug
        mse_loss(net(x), y).backward()
        update(optimizer)
        step += 1
        if not found and step == STOP:
            return save(folder, net, optimizer, step=step)
        if step == 2 * STOP:
            break
    return None


def skips_in_another_order(bug: bool, folder: Path) -> None:
    """wyim-pgl/transgenic #59: as many batches are skipped as were trained, in another random order."""
    data = points()
    own = torch.utils.data.Subset(data, range(rank(), SAMPLES, size()))
    loader = DataLoader(own, batch_size=BATCH, shuffle=True)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = restored(folder, net, optimizer)
    first, begin = found.get("epoch", 0), found.get("step", 0) % len(loader)
    step = found.get("step", 0)
    if found and not bug:
        torch.set_rng_state(found["random"])
    for epoch in range(first, EPOCHS):
        random = torch.get_rng_state()
        for index, (x, y) in enumerate(loader):  # bug
            if found and epoch == first and index < begin:
                continue
            mse_loss(net(x), y).backward()
            update(optimizer)
            step += 1
            if not found and step == STOP:
                return save(folder, net, optimizer, epoch=epoch, step=step, random=random)
    return None


def begins_the_next_epoch(bug: bool, folder: Path) -> None:
    """vllm-project/speculators #603: a resume goes to the next epoch, without the rest of the interrupted one."""
    data = points()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = restored(folder, net, optimizer)
    step = found.get("global_step", 0)
    first = found.get("epoch", -1) + 1 if bug else found.get("epoch", 0)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        seen = 0 if bug else max(0, step - epoch * len(loader))
        for x, y in islice(loader, seen, None):  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)
            step += 1
            if not found and step == STOP:
                return save(folder, net, optimizer, epoch=epoch, global_step=step)
    return None


def skips_in_the_order_of_epoch_0(bug: bool, folder: Path) -> None:
    """huggingface/accelerate #4071: the right number of batches is skipped, in the order of epoch 0."""
    data = points()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    found = restored(folder, net, optimizer)
    step = found.get("step", 0)
    for epoch in range(step // len(loader), EPOCHS):
        if not found or not bug or epoch > step // len(loader):
            sampler.set_epoch(epoch)
        for x, y in islice(loader, max(0, step - epoch * len(loader)), None):  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)
            step += 1
            if not found and step == STOP:
                return save(folder, net, optimizer, step=step)
    return None


RULE, KIND = "resume-samples", "samples"
CASES = [
    Case(begins_the_epoch_again, "Lightning #1182", RULE, KIND, "found, certain", twice=True),
    Case(replays_the_order_of_its_seed, "pocket-tts #287", RULE, KIND, "found, certain", twice=True),
    Case(iterates_over_the_epoch_fully, "dalle-mini #105", RULE, KIND, "found, certain", twice=True),
    Case(skips_a_batch_for_each_update, "transformers #5605", RULE, KIND, "found, certain", twice=True),
    Case(restores_all_but_the_loader, "accelerate #1130", RULE, KIND, "found, certain", twice=True),
    Case(ignores_the_data_that_it_saw, "transformers, ignore_data_skip", RULE, KIND, "found, certain", twice=True),
    Case(restarts_within_an_epoch, "Lightning #19764", RULE, KIND, "not found", twice=True),
    Case(reads_the_stream_from_the_start, "praxis #30", RULE, KIND, "found, likely", twice=True),
    Case(skips_in_another_order, "transgenic #59", RULE, KIND, "found, certain", twice=True),
    Case(begins_the_next_epoch, "speculators #603", RULE, KIND, "found, certain", twice=True),
    Case(
        skips_in_the_order_of_epoch_0,
        "accelerate #4071",
        RULE,
        KIND,
        "found, certain",
        twice=True,
        also=("resume-order", "epochs"),
    ),
]
