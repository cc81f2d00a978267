import torch

torch.manual_seed(0)
indices = torch.tensor([[0], [1], [2]])
values = torch.tensor([1, 2, 3])
tensor1 = torch.sparse_coo_tensor(indices, values, size=(3,))
tensor2 = torch.tensor([4, 5])
result = torch.cartesian_prod(tensor1.to_dense(), tensor2)
