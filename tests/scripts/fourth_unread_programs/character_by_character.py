import torch
import torch.nn as nn

torch.manual_seed(0)
n_characters, chunk_len = 20, 6


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super(RNN, self).__init__()
        self.encoder = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, input, hidden):
        input = self.encoder(input.view(1, -1))
        output, hidden = self.gru(input.view(1, 1, -1), hidden)
        return self.out(output.view(1, -1)), hidden


def train(inp, target):
    hidden = torch.zeros(1, 1, 8)
    loss = 0
    for c in range(chunk_len):
        output, hidden = decoder(inp[c], hidden)
        loss += criterion(output.view(-1), target[c])
    loss.backward()
    return loss.item() / chunk_len


decoder = RNN(n_characters, 8, n_characters)
criterion = nn.CrossEntropyLoss()
chunk = torch.randint(0, n_characters, (chunk_len + 1, 1))
loss_value = train(chunk[:-1], chunk[1:])
