import torch
import torch.nn as nn

torch.manual_seed(0)


class SimpleLSTMEncoder(nn.Module):
    def __init__(self, num_embeddings, embed_dim=8, hidden_size=12, padding_idx=1):
        super().__init__()
        self.padding_idx = padding_idx
        self.embed_tokens = nn.Embedding(num_embeddings, embed_dim, padding_idx)
        self.lstm = nn.LSTM(embed_dim, hidden_size)

    def forward(self, src_tokens, src_lengths):
        x = self.embed_tokens(src_tokens)
        x = x.transpose(0, 1)
        packed_x = nn.utils.rnn.pack_padded_sequence(x, src_lengths)
        packed_outs, _ = self.lstm(packed_x)
        x, _ = nn.utils.rnn.pad_packed_sequence(packed_outs, padding_value=0.0)
        return x


def collate(samples, pad=1):
    longest = max(len(s) for s in samples)
    tokens = torch.full((len(samples), longest), pad)
    for i, s in enumerate(samples):
        tokens[i, :len(s)] = torch.tensor(s)
    return tokens, torch.tensor([len(s) for s in samples])


samples = [[4, 9, 2], [5, 6, 7, 8, 10, 2], [11, 2]]
src_tokens, src_lengths = collate(samples)
net = SimpleLSTMEncoder(20)
out = net(src_tokens, src_lengths)
