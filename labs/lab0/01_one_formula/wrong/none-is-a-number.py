def descend(weights, gradients, learning_rate):
    return [w - learning_rate * g for w, g in zip(weights, gradients)]
