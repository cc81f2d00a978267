import numpy as np
import torch

np.random.seed(0)


def scan_generator(vols, batch_size=1):
    while True:
        picked = np.random.randint(len(vols), size=batch_size)
        yield [np.stack([vols[p][..., np.newaxis] for p in picked])]


vols = np.random.rand(4, 16, 12).astype("float32")
generator = scan_generator(vols)
inputs = next(generator)
inputs = [torch.from_numpy(d).float().permute(0, 4, 1, 2, 3) for d in inputs]
conv = torch.nn.Conv2d(1, 4, 3)
flow = conv(inputs[0])
