import numpy as np
import torch

frame = np.arange(2 * 3 * 3, dtype="uint8").reshape(2, 3, 3)      # height, width, RGB
bgr = frame[..., ::-1]
img = torch.from_numpy(bgr.transpose(2, 0, 1))
