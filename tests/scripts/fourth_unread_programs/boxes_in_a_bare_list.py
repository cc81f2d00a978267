from typing import List

import torch


def cat_boxes(box_lists: List):
    return torch.cat([x for x in box_lists])


def f(t: torch.Tensor):
    return cat_boxes([t, torch.tensor([3.0, 4.0])])


f_script = torch.jit.script(f)
out = f_script(torch.tensor([1.0, 2.0]))
