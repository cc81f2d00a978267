import torch
import torch.nn as nn

torch.manual_seed(0)


class Reservoir:
    def __init__(self, n=20):
        self.w_in = torch.rand(16, n)
        self.w = 0.1 * torch.rand(n, n)
        self.v = torch.zeros(n)

    def run(self, image, time=15):
        spikes = []
        s = torch.zeros(20, dtype=torch.bool)
        for _ in range(time):
            inp = (torch.rand(16) < image).float()
            self.v = 0.9 * self.v + inp @ self.w_in + s.float() @ self.w
            s = self.v > 4.0
            self.v[s] = 0.0
            spikes.append(s)
        return torch.stack(spikes)


class NN(nn.Module):
    def __init__(self, input_size, num_classes):
        super(NN, self).__init__()
        self.linear = nn.Linear(input_size, num_classes)

    def forward(self, x):
        return self.linear(x)


network = Reservoir()
images, labels = torch.rand(12, 16), torch.randint(0, 10, (12,))
training_pairs = []
for datum, label in zip(images, labels):
    training_pairs.append((network.run(datum).sum(0).view(1, -1), label.view(1)))

model = NN(20, 10)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for s, label in training_pairs:
    optimizer.zero_grad()
    output = model(s)
    loss = criterion(output, label)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
