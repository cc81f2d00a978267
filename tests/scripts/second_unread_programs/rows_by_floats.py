import torch
from torch import nn
import numpy as np

torch.manual_seed(0)


class GRUObservationCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.gru_d = nn.GRUCell(input_size, hidden_size)

    def forward(self, h, p, X_obs, i_obs):
        p_obs = p[i_obs]
        temp = h.clone()
        temp[i_obs.long()] = self.gru_d(X_obs - p_obs, h[i_obs.long()])
        return temp


batch_idx = np.array([0.0, 2.0])           # as the table has it
i_obs = torch.tensor(batch_idx)
cell = GRUObservationCell(3, 5)
h, p = torch.randn(4, 5), torch.randn(4, 3)
new_h = cell(h, p, torch.randn(2, 3), i_obs)
