import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
n_classes, n_input_length, target_length = 37, 14, 4
model = nn.Sequential(nn.Conv1d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(8, n_classes, 3, padding=1))
images = torch.randn(5, 3, 24)
target = torch.randint(1, n_classes, (5, target_length))
output = model(images).permute(2, 0, 1)
output_log_softmax = F.log_softmax(output, dim=-1)
input_lengths = torch.full((5,), n_input_length, dtype=torch.long)
target_lengths = torch.full((5,), target_length, dtype=torch.long)
loss = F.ctc_loss(output_log_softmax, target, input_lengths, target_lengths)
