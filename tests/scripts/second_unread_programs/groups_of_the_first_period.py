import torch
from torch import nn

torch.manual_seed(0)


def construct_optimizer(model, bn_weight_decay):
    bn_params = [p for m in model.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()]
    non_bn = [p for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()]
    if bn_weight_decay is None:
        optim_params = [{"params": non_bn + bn_params, "weight_decay": 1e-4}]
    else:
        optim_params = [{"params": bn_params, "weight_decay": bn_weight_decay},
                        {"params": non_bn, "weight_decay": 1e-4}]
    return torch.optim.SGD(optim_params, lr=0.1, momentum=0.9)


model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
optimizer = construct_optimizer(model, bn_weight_decay=None)
model(torch.randn(8, 4)).pow(2).mean().backward()
optimizer.step()
checkpoint = {"optimizer_state": optimizer.state_dict()}

optimizer = construct_optimizer(model, bn_weight_decay=0.0)     # the next period
optimizer.load_state_dict(checkpoint["optimizer_state"])
