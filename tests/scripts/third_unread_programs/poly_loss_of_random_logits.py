import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Poly1CrossEntropyLoss(nn.Module):
    def __init__(self, num_classes, epsilon=1.0, reduction="none"):
        super(Poly1CrossEntropyLoss, self).__init__()
        self.num_classes = num_classes
        self.epsilon = epsilon
        self.reduction = reduction

    def forward(self, logits, labels):
        labels_onehot = F.one_hot(labels, num_classes=self.num_classes).to(dtype=logits.dtype)
        pt = torch.sum(labels_onehot * F.softmax(logits, dim=-1), dim=-1)
        CE = F.cross_entropy(input=logits, target=labels, reduction="none")
        poly1 = CE + self.epsilon * (1 - pt)
        return poly1.mean() if self.reduction == "mean" else poly1


batch_size, num_classes = 4, 5
loss = Poly1CrossEntropyLoss(num_classes=num_classes, reduction="mean")
logits = torch.rand([batch_size, num_classes])
labels = torch.randint(0, num_classes, [batch_size])
output = loss(logits, labels)
output.backward()
