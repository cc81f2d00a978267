import torch
import torch.nn as nn

torch.manual_seed(0)


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.model_optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.steps = 0

    def process_batch(self, inputs):
        outputs = self.model(inputs["color"])
        losses = {"loss": (outputs - inputs["depth"]).abs().mean()}
        return outputs, losses

    def val(self, inputs):
        self.model.eval()
        with torch.no_grad():
            outputs, losses = self.process_batch(inputs)
        self.model.train()
        return losses

    def run_epoch(self, loader):
        for inputs in loader:
            outputs, losses = self.process_batch(inputs)
            losses = self.val(inputs)
            self.model_optimizer.zero_grad()
            losses["loss"].backward()
            self.model_optimizer.step()
            self.steps += 1


trainer = Trainer()
before = trainer.model.weight.detach().clone()
trainer.run_epoch([{"color": torch.randn(3, 4), "depth": torch.rand(3, 1)} for _ in range(2)])
