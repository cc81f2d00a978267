import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)


def train_step(model, dataloader, loss_fn, optimizer):
    model.train()
    train_loss = 0
    for X, y in dataloader:
        y_pred = model(X)
        loss = loss_fn(y_pred, y)
        train_loss += loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    train_loss = train_loss / len(dataloader)
    return train_loss


def train(model, dataloader, optimizer, loss_fn=nn.CrossEntropyLoss(), epochs=3):
    results = {"train_loss": []}
    for epoch in range(epochs):
        results["train_loss"].append(train_step(model, dataloader, loss_fn, optimizer))
    return results


def plot_loss_curves(results):
    loss = results["train_loss"]
    epochs = range(len(loss))
    return np.asarray([np.asarray(value) for value, _ in zip(loss, epochs)])


model = nn.Linear(4, 3)
X = torch.randn(12, 4)
data = [(X[:6], X[:6].argmax(1) % 3), (X[6:], X[6:].argmax(1) % 3)]
results = train(model, data, torch.optim.Adam(model.parameters(), lr=0.05))
curve = plot_loss_curves(results)
