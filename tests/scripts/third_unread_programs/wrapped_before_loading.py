import io

import torch
import torch.nn as nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.data_bn = nn.BatchNorm1d(6)
        self.fcn = nn.Linear(6, 3)

    def forward(self, x):
        return self.fcn(self.data_bn(x))


trained = Model()
file = io.BytesIO()
torch.save(trained.state_dict(), file)
file.seek(0)

model = nn.DataParallel(Model())
weights = torch.load(file)
model.load_state_dict(weights)
out = model(torch.randn(4, 6))
