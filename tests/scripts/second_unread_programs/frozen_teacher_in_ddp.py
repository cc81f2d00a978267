import torch
import torch.nn.functional as F
from torch import nn
import tempfile

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)


def wrap_model(model, find_unused_parameters=False):
    return DistributedDataParallel(model, find_unused_parameters=find_unused_parameters)


try:
    teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
    for param in teacher.parameters():
        param.requires_grad = False
    teacher_model = wrap_model(teacher)
    student_model = wrap_model(student)
    x = torch.randn(5, 4)
    loss = F.mse_loss(student_model(x), teacher_model(x))
    loss.backward()
finally:
    dist.destroy_process_group()
