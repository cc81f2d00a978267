import numpy as np
import torch

ntrain, ntest = 8, 2
sub = 2 ** 3
h = 2 ** 6 // sub
s = h


class MatReader(object):
    def __init__(self, file_path):
        rng = np.random.default_rng(0)
        self.data = {'a': rng.standard_normal((10, 64)), 'u': rng.standard_normal((10, 64))}

    def read_field(self, field):
        return torch.from_numpy(self.data[field].astype(np.float32))


reader = MatReader('burgers_data_R10.mat')
x_data = reader.read_field('a')
y_data = reader.read_field('u')[:, ::sub]

x_train = x_data[:ntrain, :]
y_train = y_data[:ntrain, :]
x_test = x_data[-ntest:, :]
y_test = y_data[-ntest:, :]

x_train = x_train.reshape(ntrain, s, 1)
x_test = x_test.reshape(ntest, s, 1)
train_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x_train, y_train), batch_size=4, shuffle=True)
