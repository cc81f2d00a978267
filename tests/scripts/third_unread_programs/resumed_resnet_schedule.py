import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(3, 2)
start_epoch, epochs, lr = 4, 8, 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 6], last_epoch=start_epoch - 1)
rates = []
for epoch in range(start_epoch, epochs):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
    rates.append(optimizer.param_groups[0]["lr"])
    scheduler.step()
