import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
start = model.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
gradient_accumulation_steps = 2
xs = torch.randn(4, 6, 4)
for step, x in enumerate(xs):
    loss = model(x).pow(2).mean() / gradient_accumulation_steps
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (step + 1) % gradient_accumulation_steps == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
