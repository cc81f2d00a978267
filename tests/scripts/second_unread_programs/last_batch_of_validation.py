import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Cylinder(nn.Module):
    def __init__(self, nclass=4):
        super().__init__()
        self.point = nn.Linear(3, nclass)
        self.nclass = nclass

    def forward(self, pt_fea, grid, batch_size):
        fea = torch.cat([self.point(one) for one in pt_fea])
        cat_grid = torch.cat([F.pad(one, (1, 0), value=i) for i, one in enumerate(grid)])
        dense = torch.zeros(batch_size, 5, self.nclass)
        dense = dense.index_put((cat_grid[:, 0], cat_grid[:, 1]), fea, accumulate=True)
        return dense.permute(0, 2, 1)


my_model = Cylinder()
val_batch_size = 6
losses = []
for scenes in (6, 2):                      # 8 scenes to validate on
    val_pt_fea = [torch.randn(7, 3) for _ in range(scenes)]
    val_grid = [torch.randint(5, (7, 1)) for _ in range(scenes)]
    val_label = torch.randint(4, (scenes, 5))
    predict_labels = my_model(val_pt_fea, val_grid, val_batch_size)
    losses.append(F.cross_entropy(predict_labels, val_label))
