import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, hid_dim):
        super().__init__()
        self.attn = nn.Linear(2 * hid_dim, hid_dim)
        self.v = nn.Linear(hid_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs):
        src_len = encoder_outputs.shape[0]
        hidden = hidden.unsqueeze(1).repeat(1, src_len, 1)
        encoder_outputs = encoder_outputs.permute(1, 0, 2)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        return F.softmax(self.v(energy).squeeze(2), dim=1)


attention = Attention(6)
rnn = nn.GRU(4, 6, num_layers=2)
encoder_outputs = torch.randn(7, 3, 6)
hidden = torch.zeros(3, 6)
weights = []
for step in range(2):
    weights.append(attention(hidden, encoder_outputs))
    output, hidden = rnn(torch.randn(1, 3, 4))
    hidden = hidden.squeeze(0)
