import torch


def denormalize(tensor):
    means = [0.485, 0.456, 0.406]
    stds = [0.229, 0.224, 0.225]
    denormalized = tensor.clone()
    for channel, mean, std in zip(denormalized[0], means, stds):
        channel.mul_(std).add_(mean)
    return denormalized


torch.manual_seed(0)
input_ = torch.randn(1, 3, 4, 4, requires_grad=True)
shown = denormalize(input_)
