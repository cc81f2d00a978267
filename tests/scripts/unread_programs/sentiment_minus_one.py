import torch
import torch.nn as nn

torch.manual_seed(0)
values = [-1, 0, 1, 1, -1, 0, -1, 1]        # negative, neutral, positive
labels = torch.tensor(values)
classifier = nn.Linear(4, 3)
logits = classifier(torch.randn(8, 4))
loss = nn.CrossEntropyLoss()(logits, labels)
loss.backward()
