import torch

torch.manual_seed(0)
tensors_list = [torch.rand(1, 3), torch.rand(1, 3)]
list_to_tensor = torch.tensor(tensors_list)
