import torch
import torch.nn as nn

torch.manual_seed(0)
configs = {
    'mosi': {'sequence_length': 50, 'nheads': 5},
    'sims': {'sequence_length': 39, 'nheads': 5},
}


class TransformerEncoderLayer(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        return self.self_attn(x, x, x)[0]


def build(dataset):
    config = configs[dataset]
    return TransformerEncoderLayer(config['sequence_length'], config['nheads'])


model = build('mosi')
model = build('sims')
out = model(torch.randn(4, 2, 39))
