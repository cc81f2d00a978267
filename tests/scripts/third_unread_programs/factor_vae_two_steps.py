import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class FactorVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))
        self.decode = nn.Linear(3, 8)

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decode(z), mu, logvar, z


VAE = FactorVAE()
D = nn.Sequential(nn.Linear(3, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
optim_VAE = torch.optim.Adam(VAE.parameters(), lr=1e-3)
optim_D = torch.optim.Adam(D.parameters(), lr=1e-3)
ones = torch.ones(10, dtype=torch.long)
zeros = torch.zeros(10, dtype=torch.long)
start = [p.clone() for p in list(VAE.parameters()) + list(D.parameters())]
for _ in range(2):
    x_true1, x_true2 = torch.randn(10, 8), torch.randn(10, 8)
    x_recon, mu, logvar, z = VAE(x_true1)
    D_z = D(z)
    vae_tc_loss = (D_z[:, :1] - D_z[:, 1:]).mean()
    kld = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
    vae_loss = F.mse_loss(x_recon, x_true1) + kld + 6.4 * vae_tc_loss
    optim_VAE.zero_grad()
    vae_loss.backward(retain_graph=True)
    optim_VAE.step()

    z_prime = VAE(x_true2)[3]
    z_pperm = z_prime[torch.randperm(10)].detach()
    D_z_pperm = D(z_pperm)
    D_tc_loss = 0.5 * (F.cross_entropy(D_z, zeros) + F.cross_entropy(D_z_pperm, ones))
    optim_D.zero_grad()
    D_tc_loss.backward()
    optim_D.step()
