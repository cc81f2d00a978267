import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
embedding, lstm = nn.Embedding(30, 4, padding_idx=0), nn.LSTM(4, 5, batch_first=True)
chars = torch.tensor([[[3, 4, 0], [7, 0, 0]], [[9, 2, 5], [0, 0, 0]]])    # batch, words, characters
lengths = (chars != 0).sum(2)
flat, flat_lengths = chars.flatten(0, 1), lengths.flatten()
packed = pack_padded_sequence(embedding(flat), flat_lengths, batch_first=True, enforce_sorted=False)
_, (hidden, _) = lstm(packed)
words = hidden[-1]
