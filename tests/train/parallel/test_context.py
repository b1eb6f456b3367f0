"""The zig-zag order, the keys that a rank attends to, and blockwise attention, without a world."""

from __future__ import annotations

import pytest
import torch

from frog.core.config import ModelConfig
from frog.core.errors import ShapeError
from frog.train.comm import Axis
from frog.train.comm.axis import Silent
from frog.train.model import TinyTransformer
from frog.train.model.transformer import causal_attention
from frog.train.parallel.model import blockwise
from frog.train.parallel.model.context import RingAttention, local_part, use_context, visible, zigzag

ALONE = Axis("cp", [0], 0, torch.device("cpu"), None, [Silent()])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_each_position_has_one_rank_and_all_have_the_same_work(size: int) -> None:
    T = 6 * size
    parts = [zigzag(T, size, rank) for rank in range(size)]
    assert torch.cat(parts).sort().values.tolist() == list(range(T))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    seen = [int((part + 1).sum()) for part in parts]  # position p attends to p + 1 positions
    assert len(set(seen)) == 1


def test_zigzag_matches_hand_computed_positions() -> None:
    assert [zigzag(8, 2, rank).tolist() for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert zigzag(5, 1, 0).tolist() == [0, 1, 2, 3, 4]


def test_indivisible_sequence_is_rejected() -> None:
    with pytest.raises(ShapeError, match="sequence of 10 tokens is not a multiple of 2 x cp 2 = 4"):
        zigzag(10, 2, 0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_visible_keys_match_causal_mask(size: int) -> None:
    T = 4 * size
    for rank in range(size):
        for owner in set(range(size)) - {rank}:
            queries, keys = zigzag(T, size, rank), zigzag(T, size, owner)
            rows, columns = visible(owner, rank, len(queries))
            looked_at = torch.zeros(len(queries), len(keys), dtype=torch.bool)
            looked_at[rows, columns] = True
            assert torch.equal(looked_at, queries.unsqueeze(1) >= keys)
            assert looked_at.sum() * 2 == looked_at.numel()


def test_parts_merge_into_attention_to_all_keys() -> None:
    torch.manual_seed(1)
    q_BKGtC, k_BKsC, v_BKsC = torch.randn(2, 2, 3, 5, 4) * 9, torch.randn(2, 2, 12, 4) * 9, torch.randn(2, 2, 12, 4)
    whole, log_whole = blockwise.attend(q_BKGtC, k_BKsC, v_BKsC, False)
    y, log_sum = blockwise.attend(q_BKGtC, k_BKsC[:, :, :3], v_BKsC[:, :, :3], False)
    for part in (slice(3, 4), slice(4, 12)):
        blockwise.merge(y, log_sum, *blockwise.attend(q_BKGtC, k_BKsC[:, :, part], v_BKsC[:, :, part], False))
    torch.testing.assert_close(y, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_sum, log_whole, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_ring_of_one_rank_equals_causal_attention() -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(2, heads, 6, 4, dtype=torch.float64, requires_grad=True) for heads in (6, 2, 2)]
    torch.testing.assert_close(RingAttention(ALONE)(*inputs), causal_attention(*inputs))
    assert torch.autograd.gradcheck(RingAttention(ALONE), inputs)


def test_model_uses_ring_attention() -> None:
    model = TinyTransformer(ModelConfig(50, 16, 24, 2, 2, 1, 16))
    tokens = torch.randint(0, 50, (3, 2, 8))
    inputs, labels, positions = local_part(tokens, tokens.flip(-1), ALONE)
    assert torch.equal(inputs, tokens)
    assert torch.equal(labels, tokens.flip(-1))
    expected = model(tokens[0])
    use_context(model, ALONE)
    assert all(isinstance(layer.self_attn.attend, RingAttention) for layer in model.layers)
    torch.testing.assert_close(model(tokens[0], positions_T=positions), expected)
