import torch
import torch.nn as nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(3, 8, (5, 5, 5), stride=(1, 4, 4), padding=2)
        self.lstm = nn.LSTM(8 * 2 * 2, 6, 1, batch_first=True, bidirectional=True)

    def forward(self, x, vid_lengths):
        x = torch.relu(self.conv(x))
        x = x.permute(0, 2, 1, 3, 4).contiguous()
        outputs, _ = self.lstm(x)
        return outputs


encoder = Encoder()
video = torch.randn(2, 3, 10, 8, 8)
out = encoder(video, torch.tensor([10, 10]))
