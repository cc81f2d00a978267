import torch


def kde(x, max_num_cmp=30, std=0.1):
    n = min(max_num_cmp, x.shape[-2])
    y = x[torch.multinomial(x.abs(), n, replacement=False)] if x.dim() == 1 else torch.multinomial(x, n, replacement=False)
    scores = (-torch.cdist(x, y.float()) ** 2 / (2 * std ** 2)).exp()
    return scores.sum(-1), y


torch.manual_seed(0)
x = torch.rand(50, 4)
density, y = kde(x)
