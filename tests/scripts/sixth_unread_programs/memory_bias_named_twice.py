import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

torch.manual_seed(0)


class NTMMemory(nn.Module):
    """Memory bank for NTM."""

    def __init__(self, N, M):
        super(NTMMemory, self).__init__()
        self.N = N
        self.M = M

        # The memory bias allows the heads to learn how to initially address
        # memory locations by content
        self.mem_bias = Variable(torch.Tensor(N, M))
        self.register_buffer('mem_bias', self.mem_bias.data)

        # Initialize memory bias
        stdev = 1 / (np.sqrt(N + M))
        nn.init.uniform_(self.mem_bias, -stdev, stdev)

    def reset(self, batch_size):
        self.batch_size = batch_size
        self.memory = self.mem_bias.clone().repeat(batch_size, 1, 1)

    def read(self, w):
        return torch.matmul(w.unsqueeze(1), self.memory).squeeze(1)


memory = NTMMemory(6, 4)
memory.reset(batch_size=2)
w = F.softmax(torch.randn(2, 6), dim=1)
read = memory.read(w)
