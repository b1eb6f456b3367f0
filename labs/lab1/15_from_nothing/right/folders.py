import json
import shutil

import torch
from torch.nn import functional as F


def newest(folder):
    done = [p for p in folder.glob("step_*") if (p / "done.json").exists()]
    return max(done, key=lambda p: int(p.name[5:]), default=None)


def train(folder, model, optimizer, get_batch, num_steps, every):
    model.train()
    step, losses = 0, []
    found = newest(folder)
    if found:
        everything = torch.load(found / "state.pt")
        model.load_state_dict(everything[0])
        optimizer.load_state_dict(everything[1])
        losses = json.loads((found / "losses.json").read_text())
        step = int(found.name[5:])
        torch.set_rng_state(everything[2])
    for step in range(step + 1, num_steps + 1):
        optimizer.zero_grad()
        inputs, labels = get_batch(step)
        loss = F.cross_entropy(model(inputs).transpose(1, 2), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % every == 0 or step == num_steps:
            new = folder / f"tmp_{step}"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            torch.save([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()], new / "state.pt")
            (new / "losses.json").write_text(json.dumps(losses))
            (new / "done.json").write_text("{}")
            if not (folder / f"step_{step}").exists():
                new.rename(folder / f"step_{step}")
    return losses
