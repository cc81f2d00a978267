import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
try:
    tensor = torch.arange(3.0)
    size = 2
    gather_list = [torch.zeros(3) for _ in range(size)] if dist.get_rank() == 0 else None
    dist.gather(tensor, gather_list=gather_list, dst=0)
finally:
    dist.destroy_process_group()
