import torch
import torch.nn as nn

torch.manual_seed(0)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, tensor):
        for t, m, s in zip(tensor, self.mean, self.std):
            t.sub_(m).div_(s)
        return tensor


def predict_with_model(image, model):
    normalized_image = Normalize([0.5] * 3, [0.25] * 3)(image * 1.0)
    return model(normalized_image).mean((1, 2))[None]


def robust_fgsm(image, model, eps=0.01):
    image.requires_grad_()
    logits = predict_with_model(image, model)
    loss = nn.functional.cross_entropy(logits, torch.tensor([1]))
    loss.backward()
    return (image + eps * image.grad.sign()).clamp(0, 1).detach()


model = nn.Conv2d(3, 2, 3)
image = torch.rand(3, 8, 8)
perturbed = robust_fgsm(image, model)
