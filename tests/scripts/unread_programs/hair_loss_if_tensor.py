import torch


def range_loss(pred, low, high):
    rang_grad = torch.maximum(low - pred, pred - high)
    rang_grad = rang_grad if rang_grad > 0 else 0
    return (rang_grad ** 2).sum()


pred = torch.tensor([0.1, 0.5, 0.9, 1.4], requires_grad=True)
loss = range_loss(pred, 0.2, 0.8)
loss.backward()
