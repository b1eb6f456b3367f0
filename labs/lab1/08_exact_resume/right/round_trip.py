import io

import torch


def capture(model, optimizer, loader, step):
    buffer = io.BytesIO()
    everything = dict(m=model.state_dict(), o=optimizer.state_dict(), r=torch.random.get_rng_state())
    torch.save(everything, buffer)
    buffer.seek(0)
    return {**torch.load(buffer), "at": {"epoch": loader.epoch, "index": loader.index, "step": step}}


def restore(state, model, optimizer, loader):
    model.load_state_dict(state["m"])
    optimizer.load_state_dict(state["o"])
    torch.random.set_rng_state(state["r"])
    loader.epoch = state["at"]["epoch"]
    loader.index = state["at"]["index"]
    return state["at"]["step"]
