"""Hand-written gradients, compared with finite differences in float64 and with the plain formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frog.core.config import ModelConfig
from frog.train.model import TinyTransformer, functions, matmul
from frog.train.model.functions import linear, linear_cross_entropy
from frog.train.model.transformer import RMSNorm, causal_attention


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use three rows per chunk, so that a few tokens make several chunks and an incomplete last one."""
    monkeypatch.setattr(functions, "_LEAST_CHUNK_ROWS", 3)
    monkeypatch.setattr(functions, "_CHUNK_ELEMENTS", 1)


def test_linear_passes_gradcheck() -> None:
    x, weight = random(2, 3, 4, dtype=torch.float64), random(5, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(functions._Linear.apply, (x, weight))


def test_linear_cross_entropy_passes_gradcheck(small_chunks: None) -> None:
    x, weight = random(8, 4, dtype=torch.float64), random(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 4, 2, 2, 1, 3, 0, 4])
    assert torch.autograd.gradcheck(lambda x, w: linear_cross_entropy(x, w, labels), (x, weight))


def test_rms_norm_of_zeros_is_zero_with_finite_gradients() -> None:
    x, norm = torch.zeros(4, 8, requires_grad=True), RMSNorm(8, 1e-5)
    y = norm(x)
    assert torch.equal(y, torch.zeros(4, 8))
    assert all(grad.isfinite().all() for grad in gradients(y.sum(), x, norm.weight))


@pytest.mark.parametrize("reduce", [Tensor.sum, lambda y: (y * y).mean(), lambda y: y[..., ::2].sum()])
def test_linear_equals_plain_formula(reduce: Callable[[Tensor], Tensor]) -> None:
    x, weight = random(6, 40, 96), random(130, 96)
    actual, expected = linear(x, weight), F.linear(x, weight)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        gradients(reduce(actual), x, weight), gradients(reduce(expected), x, weight), rtol=1e-5, atol=1e-3
    )


@pytest.mark.skipif(not matmul._onednn_is_faster(), reason="MKL is the faster library on this processor")
def test_onednn_products_are_selected_and_can_be_disabled() -> None:
    x, weight = random(128, 8), random(5, 8)
    assert matmul.uses_onednn(x, weight)
    assert "_Linear" in type(linear(x, weight).grad_fn).__name__
    assert not matmul.uses_onednn(x[:3], weight)
    with matmul.without_onednn():
        assert not matmul.uses_onednn(x, weight)
        assert "_Linear" not in type(linear(x, weight).grad_fn).__name__


def test_without_onednn_restores_the_setting() -> None:
    before = torch.backends.mkldnn.enabled
    with matmul.without_onednn():
        with matmul.without_onednn():
            pass
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled == before


def test_both_libraries_agree_on_transposed_views() -> None:
    a, b = torch.randn(96, 200).t(), torch.randn(96, 130).t()
    with matmul.without_onednn():
        expected = matmul.product(a, b)
    torch.testing.assert_close(matmul.product(a, b), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("in_width", "out_width"), [(96, 130), (130, 96), (40, 130)])
def test_weight_gradient_equals_product_bitwise(in_width: int, out_width: int) -> None:
    grad, x = torch.randn(200, out_width), torch.randn(200, in_width)
    gradient = matmul.weight_gradient(grad, x)
    assert gradient.is_contiguous()
    assert torch.equal(gradient, matmul.product(grad.t(), x.t()))


@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_linear_cross_entropy_equals_plain_formula(small_chunks: None, spread: float) -> None:
    """With a spread of 60 the probability of most labels underflows to zero; their loss must not."""
    x, weight = random(20, 16), random(33, 16)
    labels = torch.arange(20) % 33
    actual = linear_cross_entropy(x * spread, weight, labels)
    expected = F.cross_entropy(F.linear(x * spread, weight), labels)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradients(3 * actual, x, weight), gradients(3 * expected, x, weight), rtol=1e-5, atol=1e-5 * spread
    )


def test_linear_cross_entropy_skips_ignored_labels() -> None:
    x, weight = random(6, 4), random(5, 4)
    labels = torch.tensor([0, -100, 2, -100, 4, 1])
    actual, expected = linear_cross_entropy(x, weight, labels), F.cross_entropy(F.linear(x, weight), labels)
    assert torch.equal(actual, expected)


def test_linear_cross_entropy_works_without_gradients() -> None:
    x, weight, labels = random(6, 4), random(5, 4), torch.tensor([0, 3, 2, 1, 4, 1])
    expected = linear_cross_entropy(x, weight, labels)
    with torch.no_grad():
        alone = linear_cross_entropy(x, weight, labels)
    assert torch.equal(alone, expected)
    assert not alone.requires_grad
    frozen = linear_cross_entropy(x, weight.detach(), labels)
    assert torch.equal(gradients(frozen, x)[0], gradients(expected, x)[0])


def test_backward_twice_gives_the_same_gradient() -> None:
    x, weight, labels = random(6, 4), random(5, 4), torch.tensor([0, 3, 2, 1, 4, 1])
    loss = linear_cross_entropy(x, weight, labels)
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    assert all(map(torch.equal, first, gradients(loss, x, weight)))


def test_plain_formulas_are_used_outside_plain_float32_cpu() -> None:
    """Autocast, reduced precision, tensor subclasses and torch.compile do not use the functions for float32."""

    class Subclass(Tensor):
        pass

    x = torch.randn(4, 8)
    assert functions.takes_fast_path(x, nn.Parameter(x))
    assert not functions.takes_fast_path(x, x.bfloat16())
    assert not functions.takes_fast_path(x.bfloat16(), x.bfloat16())
    assert not functions.takes_fast_path(x.as_subclass(Subclass))
    assert not functions.takes_fast_path(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not functions.takes_fast_path(x, x)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_attention_by_scores_equals_fused_kernel(num_kv_heads: int) -> None:
    q, k, v = (random(2, heads, 9, 8, seed=heads + n) for n, heads in enumerate((6, num_kv_heads, num_kv_heads)))
    actual = functions.attention_by_scores(q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients(actual.square().sum(), q, k, v), gradients(expected.square().sum(), q, k, v))


def test_attention_by_scores_is_used_for_short_bfloat16_sequences() -> None:
    short, long = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 513, 4)
    assert not functions.writes_scores_out(short, short, short)
    with torch.autocast("cpu", torch.bfloat16):
        assert functions.writes_scores_out(short, short, short)
        assert not functions.writes_scores_out(long, long, long)
        y = causal_attention(short, short, short)
        exact = functions.attention_by_scores(short.double(), short.double(), short.double())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact, rtol=0.05, atol=0.05)
    with torch.autocast("cpu", torch.float16):
        assert not functions.writes_scores_out(short, short, short)


@pytest.mark.slow
def test_compiled_model_has_the_same_loss() -> None:
    model = TinyTransformer(ModelConfig(64, 32, 48, 2, 4, 2, 40))
    tokens = torch.randint(0, 64, (4, 41))
    # The eager backend traces the whole model without needing a C++ compiler; fullgraph forbids breaks.
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    loss = compiled(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(loss, model(tokens[:, :-1], tokens[:, 1:]), rtol=1e-5, atol=1e-6)
