import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)


def get_class_weight():
    num_per_class = np.array([551., 78., 12., 90., 31.])
    weight = num_per_class / float(sum(num_per_class))
    ce_label_weight = 1 / (weight + 0.02)
    return np.expand_dims(ce_label_weight, axis=0)


class_weights = torch.from_numpy(get_class_weight()).float()
criterion = nn.CrossEntropyLoss(weight=class_weights, reduction='none')
logits = nn.Linear(3, 5)(torch.randn(10, 3))
labels = torch.randint(0, 5, (10,))
loss = criterion(logits, labels)
