import torch
from torch import nn

torch.manual_seed(0)


class LSTMModel(nn.Module):
    def __init__(self, vocab_size, embedding_dim=5, hidden_size=6):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_size)
        self.fc = nn.Linear(hidden_size, vocab_size)

    def init_hidden(self, batch_size):
        return (torch.zeros(1, batch_size, self.hidden_size), torch.zeros(1, batch_size, self.hidden_size))

    def forward(self, x, state=None):
        x = self.embedding(x)
        if state is None:
            state = self.init_hidden(x.size(0))
        out, state = self.lstm(x, state)
        return self.fc(out)


model = LSTMModel(20)
songs = torch.randint(20, (4, 9))          # (batch, length)
pred = model(songs)
