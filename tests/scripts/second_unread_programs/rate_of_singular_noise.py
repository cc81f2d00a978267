import torch

torch.manual_seed(0)
H = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
nu = H @ H.t()
de = torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]]])     # one user has noise of rank one
I_r = torch.eye(2)
rate_f = torch.log2(torch.linalg.det(I_r + nu @ torch.linalg.inv(de + 1e-10)))
