import torch
import torch.nn.functional as F
from torch.func import grad, vmap

torch.manual_seed(0)
weight = torch.randn(5, 3)
samples, targets = torch.randn(8, 3), torch.randint(0, 5, (8,))


def compute_loss(weight, sample, target):
    hidden = F.dropout(weight @ sample, p=0.5, training=True)
    return F.cross_entropy(hidden.unsqueeze(0), target.unsqueeze(0))


ft_per_sample_grads = vmap(grad(compute_loss), in_dims=(None, 0, 0))(weight, samples, targets)
