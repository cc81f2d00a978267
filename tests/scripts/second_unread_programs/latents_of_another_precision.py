import torch
from torch import nn

torch.manual_seed(0)


class UNet2DConditionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Linear(4, 8)
        self.to_k = nn.Linear(6, 8)

    def forward(self, sample, encoder_hidden_states):
        return self.conv_in(sample) + self.to_k(encoder_hidden_states).mean(1)


unet = UNet2DConditionModel().to(torch.float16)
text_encoder = nn.Embedding(20, 6)         # stays in float32
noisy_latents = torch.randn(2, 4).half()
encoder_hidden_states = text_encoder(torch.randint(20, (2, 5)))
noise_pred = unet(noisy_latents, encoder_hidden_states)
