import torch


def attention(q, k, v):
    B, H, T, C = q.shape
    K = k.shape[1]
    q = q.reshape(B, K, H // K, T, C)
    scores = torch.einsum("bkgtc,bksc->bkgts", q, k) * C**-0.5
    place = torch.arange(T)
    scores = torch.where(place[:, None] >= place[None, :], scores, torch.tensor(-1e30))
    scores = scores - scores.amax(-1, keepdim=True)
    weights = scores.exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bkgts,bksc->bkgtc", weights, v).reshape(B, H, T, C)
