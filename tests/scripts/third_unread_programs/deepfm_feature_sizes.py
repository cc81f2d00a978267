import torch
import torch.nn as nn

torch.manual_seed(0)


class DeepFM(nn.Module):
    def __init__(self, feature_sizes, embedding_size=4):
        super().__init__()
        self.fm_first_order_embeddings = nn.ModuleList([nn.Embedding(feature_size, 1) for feature_size in feature_sizes])
        self.fm_second_order_embeddings = nn.ModuleList([nn.Embedding(feature_size, embedding_size) for feature_size in feature_sizes])

    def forward(self, Xi, Xv):
        fm_first_order_emb_arr = [(torch.sum(emb(Xi[:, i, :]), 1).t() * Xv[:, i]).t() for i, emb in enumerate(self.fm_first_order_embeddings)]
        first = torch.cat(fm_first_order_emb_arr, 1)
        second = [(torch.sum(emb(Xi[:, i, :]), 1).t() * Xv[:, i]).t() for i, emb in enumerate(self.fm_second_order_embeddings)]
        sum_square = sum(second).pow(2)
        square_sum = sum(s.pow(2) for s in second)
        return first.sum(1) + 0.5 * (sum_square - square_sum).sum(1)


feature_sizes = [3, 4, 5]
Xi = torch.tensor([[[0], [3], [4]], [[2], [1], [7]], [[1], [0], [2]]])
Xv = torch.ones(3, 3)
model = DeepFM(feature_sizes)
total = model(Xi, Xv)
