"""Text generation, token by token."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from frog.core.errors import NonFiniteError
from frog.train.data.tokenizer import end_of_document_id
from frog.train.model import TinyTransformer


@torch.no_grad()
def sample_text(
    model: TinyTransformer,
    tokenizer: Tokenizer,
    prompt: str,
    num_tokens: int,
    *,
    seed: int,
    temperature: float = 0.8,
    top_k: int = 50,
) -> str:
    """Continue the prompt: sample each token from the `top_k` most likely; temperature 0 takes the most likely.

    Uses a separate random generator, so that sampling does not change the training run.

    Raises:  NonFiniteError if the model computes NaN or infinite logits.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    ids = tokenizer.encode(prompt).ids or [end_of_document_id(tokenizer)]
    was_training = model.training
    model.eval()
    for _ in range(num_tokens):
        context = torch.tensor([ids[-model.config.max_position_embeddings :]], device=device)
        ids.append(_draw(model(context)[0, -1].float().cpu(), generator, temperature, top_k))
    model.train(was_training)
    return str(tokenizer.decode(ids))


def _draw(logits_V: Tensor, generator: torch.Generator, temperature: float, top_k: int) -> int:
    if not logits_V.isfinite().all():
        raise NonFiniteError(
            "the model's logits are NaN or infinite, so no token can be sampled: its weights have diverged",
            "lower optimizer.learning_rate; or sample an earlier checkpoint: frog sample RUN --step N",
        )
    if temperature < 1e-6:  # treat as 0: the division below would overflow
        return int(logits_V.argmax())
    values, indices = logits_V.topk(min(top_k, len(logits_V)))
    probabilities = torch.softmax(values / temperature, dim=-1)
    return int(indices[torch.multinomial(probabilities, 1, generator=generator)])
