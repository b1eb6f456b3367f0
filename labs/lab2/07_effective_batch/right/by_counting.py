"""Count down, without math."""


def plan(num_samples, world_size, batch_per_rank, grad_accum, base_rate, base_batch):
    whole = world_size * batch_per_rank * grad_accum
    samples_per_rank = (num_samples + world_size - 1) // world_size
    left, steps = samples_per_rank, 0
    while left > 0:
        left -= batch_per_rank * grad_accum
        steps += 1
    rate = base_rate * (whole / base_batch)
    return dict(effective_batch=whole, samples_per_rank=samples_per_rank, steps=steps, learning_rate=rate)


def keep_batch(effective_batch, world_size, most_per_rank):
    for grad_accum in range(1, effective_batch + 1):
        batch = effective_batch // (world_size * grad_accum)
        if batch * world_size * grad_accum == effective_batch and 0 < batch <= most_per_rank:
            return batch, grad_accum
    raise ValueError("no such pair")
