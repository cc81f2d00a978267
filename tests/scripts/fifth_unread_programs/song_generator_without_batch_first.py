import torch
import torch.nn as nn

torch.manual_seed(0)


class LSTMModel(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_size):
        super(LSTMModel, self).__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_size)
        self.fc = nn.Linear(hidden_size, vocab_size)

    def init_hidden(self, batch_size, device):
        return (torch.zeros(1, batch_size, self.hidden_size).to(device),
                torch.zeros(1, batch_size, self.hidden_size).to(device))

    def forward(self, x, state=None, return_state=False):
        x = self.embedding(x)
        if state is None:
            state = self.init_hidden(x.size(0), x.device)
        out, state = self.lstm(x, state)
        out = self.fc(out)
        return out if not return_state else (out, state)


vocab_size, seq_length, batch_size = 20, 8, 4
vectorized_songs = torch.randint(0, vocab_size, (200,))
idx = torch.randint(0, 190, (batch_size,))
x_batch = torch.stack([vectorized_songs[i:i + seq_length] for i in idx])
y_batch = torch.stack([vectorized_songs[i + 1:i + seq_length + 1] for i in idx])
model = LSTMModel(vocab_size, 6, 5)
pred = model(x_batch)
loss = nn.functional.cross_entropy(pred.reshape(-1, vocab_size), y_batch.reshape(-1))
loss.backward()
