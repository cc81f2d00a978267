import torch
import torch.nn as nn

torch.manual_seed(0)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super(SAM, self).__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
start = [p.detach().clone() for p in model.parameters()]
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
criterion = nn.CrossEntropyLoss()
images = torch.randn(10, 4)
target = torch.randint(0, 3, (10,))

output = model(images)
loss = criterion(output, target)
loss.backward()
optimizer.first_step(zero_grad=True)

criterion(output, target).backward()
optimizer.second_step(zero_grad=False)
