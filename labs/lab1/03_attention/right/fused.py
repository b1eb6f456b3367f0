from torch.nn.functional import scaled_dot_product_attention


def attention(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
