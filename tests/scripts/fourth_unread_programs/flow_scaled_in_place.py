import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def resize_flow(flow, new_shape):
    _, _, h, w = flow.shape
    new_h, new_w = new_shape
    flow = F.interpolate(flow, (new_h, new_w))
    scale_h, scale_w = h / float(new_h), w / float(new_w)
    u_scale, v_scale = 1 / scale_w, 1 / scale_h
    u, v = flow.chunk(2, dim=1)
    u *= u_scale
    v *= v_scale
    return torch.cat([u, v], dim=1)


net = nn.Conv2d(3, 2, 3, padding=1)
x = torch.rand(1, 3, 6, 8)
up = resize_flow(net(x), (12, 16))
up.abs().mean().backward()
