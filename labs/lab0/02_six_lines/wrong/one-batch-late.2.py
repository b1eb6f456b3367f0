def train(model, data, compute_loss, optimizer):
    losses = []
    for batch in data:
        optimizer.step()
        optimizer.zero_grad()
        loss = compute_loss(model(batch))
        loss.backward()
        losses.append(loss.item())
    return losses
