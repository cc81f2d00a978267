import torch
from torch import nn
import tempfile

import torch.distributed as dist

torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)


class MiniLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.output = nn.Linear(4, 4)          # the distillation takes the attention alone
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.attention(x)


try:
    student = nn.parallel.DistributedDataParallel(MiniLM())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = student(torch.randn(6, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
finally:
    dist.destroy_process_group()
