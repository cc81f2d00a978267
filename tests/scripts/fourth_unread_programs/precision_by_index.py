import torch
import torch.nn as nn

torch.manual_seed(0)


class AverageMeter(object):
    def __init__(self):
        self.sum, self.count, self.avg = 0, 0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output, target):
    pred = output.argmax(1)
    return pred.eq(target).float().mean() * 100


def validate(loader, model, criterion):
    losses, top1 = AverageMeter(), AverageMeter()
    with torch.no_grad():
        for input, target in loader:
            output = model(input)
            loss = criterion(output, target)
            prec1 = accuracy(output, target)
            losses.update(loss.item(), input.size(0))
            top1.update(prec1[0], input.size(0))
    return top1


model = nn.Linear(4, 3)
x, t = torch.randn(9, 4), torch.randint(0, 3, (9,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, t), batch_size=4)
top1 = validate(loader, model, nn.CrossEntropyLoss())
