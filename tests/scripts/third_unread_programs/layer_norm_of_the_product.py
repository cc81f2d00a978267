import torch

x1_val = torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0], [5.0, 6.0, 7.0]])
x2_val = torch.tensor([[7.0, 8.0, 9.0, 10.0], [10.0, 11.0, 12.0, 13.0], [13.0, 14.0, 15.0, 17.0]])

y = torch.layer_norm(torch.matmul(x1_val, x2_val), normalized_shape=[3])
