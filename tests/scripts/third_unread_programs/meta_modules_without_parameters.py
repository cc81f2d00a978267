import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class MetaModule(nn.Module):
    def params(self):
        for name, param in self.named_params(self):
            yield param

    def named_leaves(self):
        return []

    def named_params(self, curr_module):
        if hasattr(curr_module, "named_leaves"):
            for name, p in curr_module.named_leaves():
                yield name, p
        for mname, module in curr_module.named_children():
            yield from self.named_params(module)


class MetaLinear(MetaModule):
    def __init__(self, *args, **kwargs):
        super().__init__()
        ignore = nn.Linear(*args, **kwargs)
        self.register_buffer("weight", ignore.weight.data.requires_grad_())
        self.register_buffer("bias", ignore.bias.data.requires_grad_())

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def named_leaves(self):
        return [("weight", self.weight), ("bias", self.bias)]


class LeNet(MetaModule):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(MetaLinear(6, 5), nn.ReLU())
        self.fc_layers = MetaLinear(5, 1)

    def forward(self, x):
        return self.fc_layers(self.main(x)).squeeze()


model = LeNet()
start = [p.detach().clone() for p in model.params()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss = F.binary_cross_entropy_with_logits(model(torch.randn(8, 6)), torch.ones(8))
optimizer.zero_grad()
loss.backward()
optimizer.step()
