import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
poison = {0, 3, 4}  # Iterations whose gradients overflow.

for epoch in range(1):
    for i in range(8):
        input = torch.randn(6, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = net(input)
            loss = output.float().square().mean()
        if i in poison:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        print(i, loss.item(), scaler.get_scale())
