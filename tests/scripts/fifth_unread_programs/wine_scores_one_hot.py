import csv
import io

import numpy as np
import torch

wine = """fixed acidity;volatile acidity;pH;alcohol;quality
7;0.27;3;8.8;6
6.3;0.3;3.3;9.5;5
8.1;0.28;3.26;10.1;7
7.2;0.23;3.19;9.9;6
6.2;0.32;3.18;9.6;4
"""
wineq_numpy = np.loadtxt(io.StringIO(wine), dtype=np.float32, delimiter=";", skiprows=1)
col_list = next(csv.reader(io.StringIO(wine), delimiter=';'))
wineq = torch.from_numpy(wineq_numpy)

data = wineq[:, :-1]
target = wineq[:, -1]
target_onehot = torch.zeros(target.shape[0], 10)
target_onehot.scatter_(1, target.unsqueeze(1), 1.0)
data_mean = torch.mean(data, dim=0)
data_normalized = (data - data_mean) / torch.sqrt(torch.var(data, dim=0))
