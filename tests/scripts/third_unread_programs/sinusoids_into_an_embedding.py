import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)


def create_sinusoidal_embeddings(nb_p, dim, E):
    theta = np.array([[p / np.power(10000, 2 * (j // 2) / dim) for j in range(dim)] for p in range(nb_p)])
    E[:, 0::2] = torch.FloatTensor(np.sin(theta[:, 0::2]))
    E[:, 1::2] = torch.FloatTensor(np.cos(theta[:, 1::2]))
    E.detach_()
    E.requires_grad = False


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab_size, max_position_embeddings):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, d_model, padding_idx=1)
        self.position_embeddings = nn.Embedding(max_position_embeddings, d_model)
        create_sinusoidal_embeddings(nb_p=max_position_embeddings, dim=d_model, E=self.position_embeddings.weight)

    def forward(self, input_ids):
        position_ids = torch.arange(input_ids.size(1)).expand_as(input_ids)
        return self.word_embeddings(input_ids) + self.position_embeddings(position_ids)


embeddings = Embeddings(6, 20, 12)
out = embeddings(torch.randint(0, 20, (2, 9)))
