import torch
from torch import nn

torch.manual_seed(0)


def freeze(*items):
    for item in items:
        for param in item.parameters() if isinstance(item, nn.Module) else (item,):
            param.requires_grad_(False)
    return items


layer = nn.Linear(2, 1)
perturbation = torch.arange(2.0, requires_grad=True)
batch = 2 * perturbation
freeze(layer, batch)
score = layer(batch)
