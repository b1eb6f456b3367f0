import torch


def describe(path):
    try:
        with open(path, "rb") as file:
            state = torch.load(file, map_location="cpu")
        step = int(state["step"])
        model = dict(state["model"])
        optimizer = state.get("optimizer")
    except Exception as error:
        raise ValueError(str(error)) from error
    seen, count, size, bad = [], 0, 0, []
    for name, tensor in model.items():
        if tensor.is_floating_point() and bool((tensor.isnan() | tensor.isinf()).any()):
            bad.append(name)
        if any(tensor.data_ptr() == other.data_ptr() and tensor.shape == other.shape for other in seen):
            continue
        seen.append(tensor)
        count += tensor.numel()
        size += tensor.numel() * tensor.element_size()
    averages = 0
    if optimizer:
        for slots in optimizer["state"].values():
            for key, value in slots.items():
                if key != "step":
                    averages += value.numel() * value.element_size()
    return dict(step=step, weights=count, weight_bytes=size, average_bytes=averages, not_finite=sorted(bad))
