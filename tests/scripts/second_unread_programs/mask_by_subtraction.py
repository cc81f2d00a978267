import torch
from torch import nn

torch.manual_seed(0)


class Batch(object):
    def _pad(self, data, pad_id, width=5):
        return [d + [pad_id] * (width - len(d)) for d in data]

    def __init__(self, data):
        src = torch.tensor(self._pad(data, 0))
        mask_src = 1 - (src == 0)
        self.src, self.mask_src = src, mask_src


batch = Batch([[5, 6, 7], [8, 9, 3, 2, 4]])
encoder = nn.Embedding(10, 4)
pooled = (encoder(batch.src) * batch.mask_src.unsqueeze(-1)).sum(1)
