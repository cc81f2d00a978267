import torch
import torch.nn as nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self, embed_size=12, hidden_size=8):
        super().__init__()
        self.embed = nn.Embedding(30, embed_size)
        self.gru = nn.GRU(embed_size, hidden_size, batch_first=True)
        self.embed_size = embed_size
        self.hidden_size = hidden_size

    def forward(self, x, x_lengths):
        x_embedded = self.embed(x)
        hiddens, h = self.gru(x_embedded)
        x_lengths = x_lengths.unsqueeze(1).unsqueeze(2).expand(x_embedded.size(0), 1, x_embedded.size(2)) - 1
        h = hiddens.gather(1, x_lengths).permute(1, 0, 2)
        return hiddens, h


encoder = Encoder()
x = torch.randint(0, 30, (4, 6))
hiddens, h = encoder(x, torch.tensor([6, 3, 5, 1]))
