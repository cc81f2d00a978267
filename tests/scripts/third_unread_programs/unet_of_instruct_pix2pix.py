import torch
import torch.nn as nn

torch.manual_seed(0)


class UNet2DConditionModel(nn.Module):
    def __init__(self, in_channels=4, out_channels=4):
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1)
        self.conv_out = nn.Conv2d(16, out_channels, kernel_size=3, padding=1)

    def forward(self, sample, t):
        return self.conv_out(torch.nn.functional.silu(self.conv_in(sample)))


unet = UNet2DConditionModel()
latents = torch.randn(1, 4, 9, 12)
image_cond_latents = torch.randn(3, 4, 9, 12)
latent_model_input = torch.cat([latents] * 3)
latent_model_input = torch.cat([latent_model_input, image_cond_latents], dim=1)
noise_pred = unet(latent_model_input, 10)
