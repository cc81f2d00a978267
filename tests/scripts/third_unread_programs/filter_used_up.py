import torch
import torch.nn as nn

torch.manual_seed(0)


class Adas(torch.optim.Optimizer):
    def __init__(self, params, lr=0.001, lr2=0.005):
        self.number = sum(p.numel() for p in params)
        super(Adas, self).__init__(params, dict(lr=lr, lr2=lr2))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad)


model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
model[0].weight.requires_grad_(False)
params = filter(lambda p: p.requires_grad, model.parameters())
optimizer = Adas(params, lr=0.1)
start = [p.detach().clone() for p in model.parameters()]
model(torch.randn(5, 3)).pow(2).mean().backward()
optimizer.step()
