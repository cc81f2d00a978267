import torch
from torch import nn

torch.manual_seed(0)
field, proposal_network = nn.Linear(3, 4), nn.Linear(3, 1)
optimizers = {
    "fields": torch.optim.Adam(field.parameters(), lr=1e-2),
    "proposal_networks": torch.optim.Adam(proposal_network.parameters(), lr=1e-2),
}
grad_scaler = torch.amp.GradScaler("cpu")
before = field.weight.detach().clone(), proposal_network.weight.detach().clone()
for step in range(4):
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    rays = torch.randn(8, 3)
    loss = field(rays).pow(2).mean()
    if step % 2 == 0:                      # the proposals are updated every other step
        loss = loss + proposal_network(rays).pow(2).mean()
    grad_scaler.scale(loss).backward()
    for optimizer in optimizers.values():
        grad_scaler.step(optimizer)
    grad_scaler.update()
