import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class SentimentRNN(nn.Module):
    def __init__(self, vocab_size, output_size=1, embedding_dim=5, hidden_dim=6, n_layers=2):
        super(SentimentRNN, self).__init__()
        self.n_layers, self.hidden_dim = n_layers, hidden_dim
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, n_layers, batch_first=True)
        self.fc = nn.Linear(hidden_dim, output_size)

    def forward(self, x, hidden):
        lstm_out, hidden = self.lstm(self.embedding(x), hidden)
        return torch.sigmoid(self.fc(lstm_out[:, -1])), hidden

    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return (weight.new(self.n_layers, batch_size, self.hidden_dim).zero_(),
                weight.new(self.n_layers, batch_size, self.hidden_dim).zero_())


batch_size = 8
data = torch.utils.data.TensorDataset(torch.randint(30, (20, 7)), torch.randint(2, (20,)))
train_loader = torch.utils.data.DataLoader(data, batch_size=batch_size)
net = SentimentRNN(30)
optimizer = torch.optim.Adam(net.parameters())
seen = 0
h = net.init_hidden(batch_size)
for inputs, labels in train_loader:
    h = tuple(each.data for each in h)
    net.zero_grad()
    output, h = net(inputs, h)
    loss = F.binary_cross_entropy(output.squeeze(), labels.float())
    loss.backward()
    optimizer.step()
    seen += len(inputs)
