import io

import torch
import torch.nn as nn

torch.manual_seed(0)


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential()
        self.cnn.add_module("conv0", nn.Conv2d(1, 4, 3))
        self.cnn.add_module("batchnorm0", nn.BatchNorm2d(4))
        self.rnn = nn.GRU(4, 6)

    def forward(self, x):
        return self.rnn(self.cnn(x).mean(2).permute(2, 0, 1))[0]


trained = CRNN()
file = io.BytesIO()
torch.save(nn.DataParallel(trained).state_dict(), file)
file.seek(0)

model = CRNN()
model.load_state_dict(torch.load(file))
model.eval()
