import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state

torch.manual_seed(0)


class SimpleMLP(nn.Module):
    def __init__(self):
        super(SimpleMLP, self).__init__()
        self.fc1 = nn.Linear(12, 5)

    def forward(self, x, letter_index, letters):
        letter_choice = letter_index.clone().cpu().numpy()
        return self.fc1(x.flatten(1)) * letters[letter_choice]


models = [SimpleMLP() for _ in range(3)]
letters = torch.tensor([1.0, 10.0, 100.0, 1000.0])
letter_nums = torch.tensor([0, 2, 3])
minibatches = torch.randn(3, 6, 3, 4)
params, buffers = stack_module_state(models)
base_model = copy.deepcopy(models[0]).to("meta")


def fmodel(params, buffers, x, index):
    return functional_call(base_model, (params, buffers), (x, index, letters))


predictions = torch.vmap(fmodel)(params, buffers, minibatches, letter_nums)
