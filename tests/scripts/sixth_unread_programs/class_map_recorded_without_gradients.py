import torch
import torch.nn as nn

torch.manual_seed(0)


class GradCAM:
    def __init__(self, model, target_layer):
        self.model = model
        self.hook_a, self.hook_g = None, None
        target_layer.register_forward_hook(self._hook)

    def _hook(self, module, input, output):
        self.hook_a = output.data
        output.register_hook(self._store_grad)

    def _store_grad(self, grad):
        self.hook_g = grad.data

    def __call__(self, class_idx, scores):
        self.model.zero_grad()
        scores[:, class_idx].sum().backward(retain_graph=True)
        weights = self.hook_g.mean(dim=(2, 3))
        return torch.relu((weights[:, :, None, None] * self.hook_a).sum(1))


model = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(),
    nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()
cam_extractor = GradCAM(model, model[2])
img = torch.rand(1, 3, 8, 8)
with torch.no_grad():
    scores = model(img)
cam = cam_extractor(scores.argmax(1).item(), scores)
