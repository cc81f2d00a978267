import torch
import torch.nn as nn
from torch.func import functional_call, stack_module_state, vmap

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, flip):
        k = flip.item()
        sign = torch.ones(3)
        sign[k] = -1.0
        return self.fc(x * sign)


models = [Net() for _ in range(2)]
params, buffers = stack_module_state(models)
base_model = models[0]


def fmodel(params, x, flip):
    return functional_call(base_model, params, (x, flip))


x = torch.randn(5, 3)
bitflips = torch.tensor([0, 2])
outputs = vmap(fmodel, in_dims=(0, None, 0))(params, x, bitflips)
