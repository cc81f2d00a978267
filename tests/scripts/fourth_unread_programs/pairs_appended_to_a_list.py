from typing import List, Tuple

import torch


class ListOfTupleOfTensor(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        returns = []
        for i in range(10):
            returns.append((x, x))
        return returns


c = torch.jit.script(ListOfTupleOfTensor())
