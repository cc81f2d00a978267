import torch
import torch.nn as nn

torch.manual_seed(0)
encoder, decoder, discriminator = nn.Sequential(nn.Linear(8, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 2)
params = list(encoder.parameters()) + list(decoder.parameters())
optim_vae = torch.optim.SGD(params, lr=0.1)
x = torch.randn(5, 8)
c = torch.randint(0, 2, (5,))

optim_vae.zero_grad()
latent = encoder(x)
generated = decoder(latent)
recon_loss = (generated - x).pow(2).mean()
kl_loss = 0.1 * latent.pow(2).mean()
total_vae_loss = recon_loss + kl_loss
total_vae_loss.backward()
l_attr_c = nn.functional.cross_entropy(discriminator(generated), c)
l_attr_c.backward()
grads = [p.grad.clone() for p in params]
optim_vae.step()
