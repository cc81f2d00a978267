import torch
import torch.nn as nn

torch.manual_seed(0)


class Train(object):
    def __init__(self, epochs=4, lr=0.1, lr_decay_steps=(2, 6), lr_decay_gamma=0.1):
        self.epochs = epochs
        self.starting_epoch = 0
        self.model = nn.Linear(3, 2)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(
            self.optim, list(lr_decay_steps), gamma=lr_decay_gamma, last_epoch=self.starting_epoch)

    def run(self):
        rates = []
        for epoch in range(self.starting_epoch, self.epochs):
            self.optim.zero_grad()
            self.model(torch.randn(4, 3)).pow(2).mean().backward()
            self.optim.step()
            rates.append(self.optim.param_groups[0]['lr'])
            self.lr_scheduler.step()
        return rates


rates = Train().run()
