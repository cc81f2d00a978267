import numpy as np
import torch

np.random.seed(0)


def detect_face(imgs):
    if not isinstance(imgs, torch.Tensor):
        imgs = torch.as_tensor(imgs)
    if len(imgs.shape) == 3:
        imgs = imgs.unsqueeze(0)
    return imgs.permute(0, 3, 1, 2).type(torch.float32)


frame = np.random.randint(0, 256, (6, 8, 3), dtype=np.uint8)
frame_rgb = frame[:, :, ::-1]
boxes = detect_face(frame_rgb)
