import torch
import torch.nn as nn

torch.manual_seed(0)


class Model(nn.Module):
    def forward(self, image):
        return image.mean(0)[::2, ::2].sigmoid()


def compute_depth(model, image):
    with torch.no_grad():
        disp = model(image)
        depth = torch.nn.functional.interpolate(
            disp.unsqueeze(1),
            size=image.shape[1:],
            mode="bilinear",
            align_corners=False,
        )
    return depth


image = torch.rand(3, 16, 24)
depth = compute_depth(Model(), image)
