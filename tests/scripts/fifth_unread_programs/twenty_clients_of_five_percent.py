import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
num_clients = 20
whole_trainset = TensorDataset(torch.randn(200, 6), torch.randint(0, 3, (200,)))
trainsets = random_split(whole_trainset, [0.05] * num_clients)

global_model = nn.Linear(6, 3)
updates = []
for trainset in trainsets:
    model = nn.Linear(6, 3)
    model.load_state_dict(global_model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(trainset, batch_size=5, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    updates.append(model.state_dict())
global_model.load_state_dict({k: torch.stack([u[k] for u in updates]).mean(0) for k in updates[0]})
