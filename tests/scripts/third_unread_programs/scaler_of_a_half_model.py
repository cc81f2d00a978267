import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(8, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
x, y = torch.randn(6, 8), torch.randint(0, 2, (6,))
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.cross_entropy(model(x).float(), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
