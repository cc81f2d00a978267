import time
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def main():
    TRAIN_DATASET = TensorDataset(torch.randn(8, 6, 3), torch.randint(0, 4, (8, 6)))
    print("start loading training data ...")
    trainDataLoader = DataLoader(
        TRAIN_DATASET, batch_size=4, shuffle=True, num_workers=2, multiprocessing_context='spawn',
        worker_init_fn=lambda x: np.random.seed(x + int(time.time())))
    total = 0
    for points, target in trainDataLoader:
        total += len(points)
    return total, points


if __name__ == '__main__':
    total, points = main()
