import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
embed = nn.Embedding(30, 6, padding_idx=0)
gru = nn.GRU(6, 5, batch_first=True)
sentences = [[4, 8, 2, 9], [7, 3], [], [5, 6, 1]]
lengths = torch.tensor([len(s) for s in sentences])
tokens = torch.zeros(len(sentences), int(lengths.max()), dtype=torch.long)
for i, s in enumerate(sentences):
    tokens[i, : len(s)] = torch.tensor(s, dtype=torch.long)
packed = pack_padded_sequence(embed(tokens), lengths, batch_first=True, enforce_sorted=False)
out, h = gru(packed)
h = h[0]
