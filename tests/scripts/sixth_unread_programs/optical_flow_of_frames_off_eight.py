import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def coords_grid(batch, ht, wd):
    ys, xs = torch.meshgrid(torch.arange(ht), torch.arange(wd), indexing='ij')
    return torch.stack([xs, ys], dim=0).float()[None].repeat(batch, 1, 1, 1)


def bilinear_sampler(img, coords):
    H, W = img.shape[-2:]
    xgrid, ygrid = coords.split([1, 1], dim=-1)
    grid = torch.cat([2 * xgrid / (W - 1) - 1, 2 * ygrid / (H - 1) - 1], dim=-1)
    return F.grid_sample(img, grid, align_corners=True)


class CorrBlock:
    def __init__(self, fmap1, fmap2, radius=1):
        self.radius = radius
        batch, dim, ht, wd = fmap1.shape
        corr = torch.matmul(fmap1.view(batch, dim, -1).transpose(1, 2), fmap2.view(batch, dim, -1))
        self.corr = corr.reshape(batch * ht * wd, 1, ht, wd) / dim ** 0.5

    def __call__(self, coords):
        r = self.radius
        coords = coords.permute(0, 2, 3, 1)
        batch, h1, w1, _ = coords.shape
        d = torch.linspace(-r, r, 2 * r + 1)
        delta = torch.stack(torch.meshgrid(d, d, indexing='ij'), dim=-1)
        centroid = coords.reshape(batch * h1 * w1, 1, 1, 2)
        corr = bilinear_sampler(self.corr, centroid + delta.view(1, 2 * r + 1, 2 * r + 1, 2))
        return corr.view(batch, h1, w1, -1).permute(0, 3, 1, 2)


class RAFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.fnet = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=2, padding=3), nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1))

    def forward(self, image1, image2):
        fmap1, fmap2 = self.fnet(image1), self.fnet(image2)
        corr_fn = CorrBlock(fmap1, fmap2)
        N, C, H, W = image1.shape
        coords1 = coords_grid(N, H // 8, W // 8)
        return corr_fn(coords1)


model = RAFT()
image1 = torch.rand(1, 3, 44, 64)
image2 = torch.rand(1, 3, 44, 64)
with torch.no_grad():
    corr = model(image1, image2)
