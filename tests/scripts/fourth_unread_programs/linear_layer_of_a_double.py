import torch

model = torch.nn.Linear(1, 1)

input_data = torch.tensor([1.0], dtype=torch.double)

output = model(input_data)
