import torch
import torch.nn as nn

torch.manual_seed(0)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(16, 32),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Dropout(inplace=True),
            nn.Linear(32, 16),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Dropout(inplace=True),
            nn.Linear(16, 1),
            nn.Sigmoid(),
        )

    def forward(self, input):
        input = input.view(input.size(0), -1)
        return self.main(input).squeeze(1)


D = Discriminator()
criterion = nn.BCELoss()
D_optimizer = torch.optim.Adam(D.parameters(), lr=0.001)
D_true_loss = criterion(D(torch.randn(6, 1, 4, 4)), torch.ones(6))
D_fake_loss = criterion(D(torch.randn(6, 1, 4, 4)), torch.zeros(6))
D_loss = D_true_loss + D_fake_loss
D.zero_grad()
D_loss.backward()
D_optimizer.step()
