import torch
import numpy as np
from torch import tensor

torch.manual_seed(0)
values = np.array([[22.0, 1, True], [38.0, 0, False], [26.0, 0, True]], dtype=object)     # Age, SibSp, Sex_male
t_indep = tensor(values, dtype=torch.float)
vals, indices = t_indep.max(dim=0)
t_indep = t_indep / vals
