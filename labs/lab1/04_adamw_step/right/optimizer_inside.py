import torch


def adamw_step(weight, gradient, state, *, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    if not state:
        state["p"] = torch.nn.Parameter(weight.clone())
        state["o"] = torch.optim.AdamW([state["p"]], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    state["p"].data.copy_(weight)
    state["p"].grad = gradient.clone()
    state["o"].step()
    weight.copy_(state["p"].detach())
