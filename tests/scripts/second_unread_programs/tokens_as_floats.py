import torch
from torch import nn
import numpy as np

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.src_word_emb = nn.Embedding(40, 6, padding_idx=0)
        self.position_enc = nn.Embedding(20, 6, padding_idx=0)

    def forward(self, src_seq, src_pos):
        return self.src_word_emb(src_seq) + self.position_enc(src_pos)


text = np.array([[3, 9, 17, 0]])
src_pos = np.array([[1, 2, 3, 0]])
sequence = torch.from_numpy(text).float()
src_pos = torch.from_numpy(src_pos).float()
encoder = Encoder()
enc_output = encoder(sequence, src_pos)
