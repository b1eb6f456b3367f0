def step(model, batch, compute_loss, optimizer):
    loss = compute_loss(model(batch))
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    return loss.item()


def train(model, data, compute_loss, optimizer):
    return [step(model, batch, compute_loss, optimizer) for batch in data]
