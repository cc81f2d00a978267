import torch
import torch.nn as nn

torch.manual_seed(0)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


model = nn.Linear(6, 10)
images, target = torch.randn(16, 6), torch.randint(0, 10, (16,))
output = model(images)
acc1, acc5 = accuracy(output, target, topk=(1, 5))
