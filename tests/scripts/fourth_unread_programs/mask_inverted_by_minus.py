import torch
import torch.nn as nn

torch.manual_seed(0)


def sequence_mask(lengths, max_len=None):
    batch_size = lengths.numel()
    max_len = max_len or lengths.max()
    return torch.arange(0, max_len).type_as(lengths).repeat(batch_size, 1).lt(lengths.unsqueeze(1))


class GlobalAttention(nn.Module):
    def __init__(self, dim):
        super(GlobalAttention, self).__init__()
        self.linear_in = nn.Linear(dim, dim, bias=False)

    def score(self, h_t, h_s):
        return torch.bmm(self.linear_in(h_t), h_s.transpose(1, 2))

    def forward(self, input, context, context_lengths=None):
        align = self.score(input, context)
        if context_lengths is not None:
            mask = sequence_mask(context_lengths)
            mask = mask.unsqueeze(1)
            align.data.masked_fill_(1 - mask, -float('inf'))
        return torch.softmax(align, -1)


attn = GlobalAttention(6)
align_vectors = attn(torch.randn(3, 2, 6), torch.randn(3, 4, 6), torch.tensor([4, 2, 3]))
