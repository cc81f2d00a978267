import torch
from torch import nn

torch.manual_seed(0)


class TransformerFeaturesExtractor(nn.Module):
    def __init__(self, features_dim=22):
        super().__init__()
        self.transformer_encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model=features_dim, nhead=2, dim_feedforward=16), num_layers=1
        )
        self.flatten = nn.Flatten()

    def forward(self, observations):
        x = self.flatten(observations)
        x = self.transformer_encoder(x.unsqueeze(0))
        return x.squeeze(0)


extractor = TransformerFeaturesExtractor()
observations = torch.randn(4, 6, 22)       # 4 windows of 6 days with 22 numbers
features = extractor(observations)
