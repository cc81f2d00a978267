import torch
from torch import nn
import numpy as np

torch.manual_seed(0)
cw_dict = {0: 0.5, 1: 2.0, 2: 1.5}
model = nn.Linear(6, 3)
cross_entropy = torch.nn.CrossEntropyLoss(weight=torch.tensor(np.array(cw_dict.values())).float())
x, y = torch.randn(8, 6), torch.randint(3, (8,))
loss = cross_entropy(model(x), y)
