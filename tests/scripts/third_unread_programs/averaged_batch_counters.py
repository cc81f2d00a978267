import copy

import torch
import torch.nn as nn

torch.manual_seed(0)


def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def average_shrink_models(weight_accumulator, target_model, no_models, eta=0.1):
    for name, data in target_model.state_dict().items():
        update_per_layer = weight_accumulator[name] * (eta / no_models)
        data.add_(update_per_layer)


target_model = make()
start = copy.deepcopy(target_model.state_dict())
weight_accumulator = {name: torch.zeros_like(data) for name, data in target_model.state_dict().items()}
for _ in range(2):
    local = copy.deepcopy(target_model)
    for _ in range(5):
        local(torch.randn(3, 1, 6, 6))
    with torch.no_grad():
        for p in local.parameters():
            p.add_(1.0)
    for name, data in local.state_dict().items():
        weight_accumulator[name].add_(data - target_model.state_dict()[name])
average_shrink_models(weight_accumulator, target_model, no_models=2)
