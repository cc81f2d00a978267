import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class CRNN(nn.Module):
    def __init__(self, nclass=7):
        super().__init__()
        self.rnn = nn.LSTM(4, 6, bidirectional=True)
        self.fc = nn.Linear(12, nclass)

    def forward(self, x):                  # (width, batch, features)
        return F.log_softmax(self.fc(self.rnn(x)[0]), 2)


batch_size = 4
crnn, criterion = CRNN(), nn.CTCLoss()
costs = []
for images in (4, 3):
    text = torch.randint(1, 7, (images, 5))
    length = torch.full((images,), 5)
    preds = crnn(torch.randn(12, images, 4))
    preds_size = torch.IntTensor([preds.size(0)] * batch_size)
    loss = criterion(preds, text, preds_size, length)
    costs.append(loss)
