import torch

torch.manual_seed(0)
image_size = (18, 10)                     # PIL: width, height
disp = torch.rand(5, 9)                   # a depth map of the network, height x width
depth = disp
disp = torch.nn.functional.interpolate(
    disp.unsqueeze(1), size=image_size[::-1], mode="bicubic", align_corners=False
)
