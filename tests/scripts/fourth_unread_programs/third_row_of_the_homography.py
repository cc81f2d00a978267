import torch

torch.manual_seed(0)


def transform(H, grid, eps=1e-6):
    T_g = torch.matmul(H, grid)
    x_s_flat, y_s_flat, t_s_flat = T_g.unbind(0)
    t_s_flat[t_s_flat.abs() < eps] = eps
    return x_s_flat / t_s_flat, y_s_flat / t_s_flat


H = torch.eye(3).requires_grad_()
grid = torch.stack([torch.linspace(-1, 1, 6), torch.linspace(0, 1, 6), torch.tensor([1.0, 1, 1, 0, 1, 1])])
x, y = transform(H, grid)
(x.mean() + y.mean()).backward()
