import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)


class Albert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = self.embed(x)
        for _ in range(2):
            x = checkpoint(lambda h: torch.tanh(self.layer(h)), x, use_reentrant=True)
        return self.head(x)


try:
    ddp_model = DDP(Albert())
    inputs, labels = torch.randn(5, 4), torch.randint(0, 2, (5,))
    loss = nn.functional.cross_entropy(ddp_model(inputs), labels)
    loss.backward()
finally:
    dist.destroy_process_group()
