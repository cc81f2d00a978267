import numpy as np
import torch as th

a = th.DoubleTensor(np.random.default_rng(0).uniform(size=(2, 1, 6, 10)))
conv1 = th.nn.Conv2d(in_channels=1, out_channels=3, kernel_size=(2, 10), stride=(1, 1))
b = conv1(a)
