import torch
import torch.nn.functional as F

torch.manual_seed(0)


def power_iteration(weight: torch.Tensor, u: torch.Tensor, steps):
    v = F.normalize(weight.t() @ u, dim=0)
    for _ in range(steps):
        u = F.normalize(weight @ v, dim=0)
        v = F.normalize(weight.t() @ u, dim=0)
    return torch.dot(u, weight @ v)


weight = torch.randn(5, 4)
u = F.normalize(torch.randn(5), dim=0)
scripted = torch.jit.script(power_iteration)
sigma = scripted(weight, u, 60)
