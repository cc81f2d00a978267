import torch
import torch.nn as nn

torch.manual_seed(0)


class Trainer(object):
    def __init__(self, model, criterion, optimizer, epochs, lr_scheduler=None):
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.epochs, self.lr_scheduler = epochs, lr_scheduler

    def fit(self, train_loader):
        return [self._train_one_epoch(train_loader) for epoch in range(self.epochs)]

    def _train_one_epoch(self, data_loader):
        self.model.train()
        losses = []
        for data in data_loader:
            inputs, labels = data
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(inputs), labels)
            loss.backward()
            self.optimizer.step()
            if self.lr_scheduler:
                self.lr_scheduler.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)


model = nn.Conv2d(3, 1, 3, padding=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=0.0001)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=6, min_lr=0.000001)
trainer = Trainer(model, criterion=nn.BCEWithLogitsLoss(), optimizer=optimizer, lr_scheduler=scheduler, epochs=3)
history = trainer.fit([(torch.rand(2, 3, 6, 6), torch.randint(0, 2, (2, 1, 6, 6)).float()) for _ in range(2)])
