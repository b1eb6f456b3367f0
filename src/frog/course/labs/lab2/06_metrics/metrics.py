"""Metrics of a run from what each rank measured."""


def world_metrics(losses: list[float], tokens: list[int], step_s: list[float]) -> dict[str, float]:
    """The run's metrics, the same on every rank, from this rank's batches. Lists may be empty on some ranks.

    losses:  mean loss of a token, for each batch of this rank.
    tokens:  how many tokens each of these batches had. The last has fewer.
    step_s:  seconds that each of them took.

    Returns  "loss": mean over all tokens of all ranks; "perplexity"; "tokens": of all ranks;
             "slowest_step_s": the longest step of any rank.
    """
    raise NotImplementedError("fill in world_metrics")
