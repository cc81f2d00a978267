import torch
import torch.nn as nn


class PointPillarsScatter(nn.Module):
    def __init__(self, ny, nx):
        super().__init__()
        self.ny, self.nx = ny, nx
        self.vfe = nn.Linear(4, 6)

    def forward(self, points, coors):
        voxel_features = self.vfe(points)
        canvas = torch.zeros(self.ny * self.nx, 6)
        indices = coors[:, 0] * self.nx + coors[:, 1]
        canvas[indices] = voxel_features
        return canvas.t().view(1, 6, self.ny, self.nx)


torch.manual_seed(0)
scatter = PointPillarsScatter(4, 5)
points, coors = torch.randn(3, 4), torch.tensor([[0, 1], [2, 2], [3, 4]])
with torch.autocast("cpu", dtype=torch.bfloat16):
    bev = scatter(points, coors)
bev.float().sum().backward()
