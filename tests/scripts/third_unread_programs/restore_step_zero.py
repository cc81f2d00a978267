import torch
import torch.nn as nn

torch.manual_seed(0)


class AnnealLR(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, warmup_steps=0.1, last_epoch=-1):
        self.warmup_steps = float(warmup_steps)
        super(AnnealLR, self).__init__(optimizer, last_epoch)

    def get_lr(self):
        step = max(self.last_epoch, 1)
        return [
            base_lr * self.warmup_steps**0.5 * min(step * self.warmup_steps**-1.5, step**-0.5) for base_lr in self.base_lrs
        ]


restore_step = 0
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = AnnealLR(optimizer, warmup_steps=4, last_epoch=restore_step)
rates = []
for step in range(6):
    model(torch.randn(2, 3)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    rates.append(optimizer.param_groups[0]["lr"])
