import torch
import torch.nn as nn

torch.manual_seed(0)


class SimpleHead(nn.Module):
    def __init__(self, task, channels, num_categories):
        super().__init__()
        self.task = task
        self.layers = nn.Conv2d(channels, num_categories, 3, padding=1)

        def loss_func(logits, targets):
            targets = targets.argmax(dim=1) if targets.dim() == 4 else targets
            return nn.functional.cross_entropy(logits, targets, reduction='none')[:, None, :, :]

        self.loss_func = loss_func

    def forward(self, raw_features, targets=None):
        raw_outputs = self.layers(raw_features)
        outputs = nn.functional.softmax(raw_outputs, dim=1)
        task_targets = torch.stack([target[self.task] for target in targets], dim=0).float()
        loss = self.loss_func(raw_outputs, task_targets)
        return outputs, loss.mean()


head = SimpleHead('segment', 6, 4)
targets = [{'segment': torch.randint(0, 4, (5, 5))} for _ in range(2)]
outputs, loss = head(torch.randn(2, 6, 5, 5), targets)
