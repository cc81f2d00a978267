import torch
import torch.nn as nn

torch.manual_seed(0)


class SparseSoftmaxCrossEntropy:
    def _create_pytorch_loss(self):
        ce_loss = nn.CrossEntropyLoss(reduction='mean')

        def loss(output, labels):
            return ce_loss(output, labels.long())

        return loss


X = torch.randn(8, 5)
y = torch.randint(0, 2, (8, 1)).float()
model = nn.Linear(5, 2)
loss_fn = SparseSoftmaxCrossEntropy()._create_pytorch_loss()
loss = loss_fn(model(X), y)
loss.backward()
