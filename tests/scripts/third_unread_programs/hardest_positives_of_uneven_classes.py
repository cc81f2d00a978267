import torch
import torch.nn as nn

torch.manual_seed(0)


def euclidean_dist(x, y):
    return torch.cdist(x, y)


def hard_example_mining(dist_mat, labels):
    N = dist_mat.size(0)
    is_pos = labels.expand(N, N).eq(labels.expand(N, N).t())
    is_neg = labels.expand(N, N).ne(labels.expand(N, N).t())
    dist_ap, relative_p_inds = torch.max(dist_mat[is_pos].contiguous().view(N, -1), 1, keepdim=True)
    dist_an, relative_n_inds = torch.min(dist_mat[is_neg].contiguous().view(N, -1), 1, keepdim=True)
    return dist_ap.squeeze(1), dist_an.squeeze(1)


global_feat = torch.randn(4, 5)
labels = torch.tensor([1, 1, 2, 3])
dist_mat = euclidean_dist(global_feat, global_feat)
dist_ap, dist_an = hard_example_mining(dist_mat, labels)
loss = nn.MarginRankingLoss(margin=0.3)(dist_an, dist_ap, torch.ones(4))
