import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

torch.manual_seed(0)


class MetaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, params=None):
        if params is None:
            params = OrderedDict(self.named_parameters())
        return F.linear(x, params["fc.weight"], params["fc.bias"])


def gradient_update_parameters(model, loss, params=None, step_size=0.5):
    if params is None:
        params = OrderedDict(model.named_parameters())
    grads = torch.autograd.grad(loss, params.values(), create_graph=True)
    return OrderedDict((name, param - step_size * grad) for (name, param), grad in zip(params.items(), grads))


model = MetaModel()
train_input, train_target = torch.randn(8, 3), torch.randint(0, 2, (8,))
test_input, test_target = torch.randn(8, 3), torch.randint(0, 2, (8,))
params = None
for t in range(3):
    train_logit = model(train_input)
    inner_loss = F.cross_entropy(train_logit, train_target)
    model.zero_grad()
    params = gradient_update_parameters(model, inner_loss, params=params)
outer_loss = F.cross_entropy(model(test_input, params=params), test_target)
outer_loss.backward()
