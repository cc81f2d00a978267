import torch

my_tensors = [torch.tensor([7, 0, 3]), torch.tensor([5, 9, 1]), torch.tensor([9, 2, 4])]
table = torch.tensor(my_tensors)
