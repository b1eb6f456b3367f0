def adamw_step(weight, gradient, state, *, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * gradient
    v = state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * gradient**2
    weight -= lr * weight_decay * weight + lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)) ** 0.5 + eps)
