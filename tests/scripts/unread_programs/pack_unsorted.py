import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
rnn = nn.GRU(3, 4, batch_first=True)
x = torch.randn(3, 6, 3)
x_lens = torch.tensor([2, 6, 4])
packed = pack_padded_sequence(x, x_lens.cpu(), batch_first=True)
out, lens = pad_packed_sequence(rnn(packed)[0], batch_first=True)
