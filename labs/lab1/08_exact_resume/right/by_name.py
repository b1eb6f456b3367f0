import torch


def clone(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: clone(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [clone(part) for part in value]
    return value


def capture(model, optimizer, loader, step):
    return {
        "tensors": [clone(t) for t in [*model.parameters(), *model.buffers()]],
        "adam": [clone(dict(optimizer.state[p])) for p in model.parameters()],
        "lr": [group["lr"] for group in optimizer.param_groups],
        "epoch": loader.epoch,
        "index": loader.index,
        "step": step,
        "rng": torch.get_rng_state().tolist(),
    }


def restore(state, model, optimizer, loader):
    with torch.no_grad():
        for own, saved in zip([*model.parameters(), *model.buffers()], state["tensors"]):
            own.copy_(saved)
    for p, adam in zip(model.parameters(), state["adam"]):
        optimizer.state[p] = clone(adam)
    for group, lr in zip(optimizer.param_groups, state["lr"]):
        group["lr"] = lr
    loader.epoch, loader.index = state["epoch"], state["index"]
    torch.random.set_rng_state(torch.tensor(state["rng"], dtype=torch.uint8))
    return state["step"]
