import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class SentimentNet(nn.Module):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size
        self.emb = nn.Embedding(30, 6)
        self.lstm = nn.LSTM(6, 10, batch_first=True)
        self.linear = nn.Linear(10, 2)

    def init_hidden(self, batch_size):
        return (torch.zeros(1, batch_size, 10), torch.zeros(1, batch_size, 10))

    def forward(self, x):
        hidden = self.init_hidden(self.batch_size)
        x = self.emb(x)
        x, hidden = self.lstm(x, hidden)
        return self.linear(x[:, -1])


loader = DataLoader(TensorDataset(torch.randint(0, 30, (40, 7)), torch.randint(0, 2, (40,))), batch_size=32)
net = SentimentNet(32)
criterion = nn.CrossEntropyLoss()
seen = 0
for text, labels in loader:
    outputs = net(text)
    loss = criterion(outputs, labels)
    loss.backward()
    seen += len(text)
