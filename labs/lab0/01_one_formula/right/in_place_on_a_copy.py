def descend(weights, gradients, learning_rate):
    new_weights = []
    for w, g in zip(weights, gradients):
        new = w.clone()
        if g is not None:
            new -= g * learning_rate
        new_weights.append(new)
    return new_weights
