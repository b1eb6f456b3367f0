import math

import torch


@torch.no_grad()
def adamw_step(weight, gradient, state, *, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    if "step" not in state:
        state["step"] = 1
        state["exp_avg"] = (1 - betas[0]) * gradient
        state["exp_avg_sq"] = (1 - betas[1]) * gradient * gradient
    else:
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - betas[0])
        state["exp_avg_sq"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    t = state["step"]
    denom = (state["exp_avg_sq"].sqrt() / math.sqrt(1 - betas[1] ** t)).add_(eps)
    weight.mul_(1 - lr * weight_decay).addcdiv_(state["exp_avg"], denom, value=-lr / (1 - betas[0] ** t))
