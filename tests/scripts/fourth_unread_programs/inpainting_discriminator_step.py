import torch
import torch.nn as nn

torch.manual_seed(0)


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.netG = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ELU(), nn.Conv2d(4, 1, 3, padding=1))
        self.localD = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(4 * 36, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.optimizer_g = torch.optim.Adam(self.netG.parameters(), lr=1e-4)
        self.optimizer_d = torch.optim.Adam(self.localD.parameters(), lr=1e-4)

    def forward(self, x, mask, ground_truth):
        inpainted = self.netG(torch.cat([x, mask], 1))
        real, fake = self.localD(ground_truth), self.localD(inpainted.detach())
        losses = {'wgan_d': torch.mean(fake - real)}
        losses['l1'] = (inpainted - ground_truth).abs().mean()
        losses['wgan_g'] = -torch.mean(self.localD(inpainted))
        return losses


trainer_module = Trainer()
done = 0
for iteration in range(2):
    ground_truth, mask = torch.rand(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)
    mask[:, :, 2:5, 2:5] = 1
    losses = trainer_module(ground_truth * (1 - mask), mask, ground_truth)
    trainer_module.optimizer_d.zero_grad()
    losses['d'] = losses['wgan_d']
    losses['d'].backward()
    trainer_module.optimizer_d.step()

    trainer_module.optimizer_g.zero_grad()
    losses['g'] = losses['l1'] * 1.2 + losses['wgan_g'] * 0.001
    losses['g'].backward()
    trainer_module.optimizer_g.step()
    done += 1
