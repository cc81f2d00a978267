import torch
import torch.nn as nn


class BiLSTM(nn.Module):
    def __init__(self, input_size=30, hidden_size=10, num_layers=2):
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.bilstm = nn.LSTM(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers,
                              bidirectional=True, bias=True)

    def forward(self, input):          # batch, seq_len, input_size
        batch = input.shape[0]
        h0 = torch.zeros(self.num_layers * 2, batch, self.hidden_size)
        c0 = torch.zeros(self.num_layers * 2, batch, self.hidden_size)
        output, (hn, cn) = self.bilstm(input, (h0, c0))
        return output, hn


torch.manual_seed(0)
net = BiLSTM()
words = torch.randn(4, 7, 30)
output, hn = net(words)
