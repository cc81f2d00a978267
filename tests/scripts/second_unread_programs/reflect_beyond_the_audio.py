import torch
import torch.nn.functional as F

torch.manual_seed(0)
audio = torch.randn(1, 2, 60)
chunk, hop = 132, 44
padding = (chunk - hop, chunk)
padded = F.pad(audio, padding, mode="reflect")
chunks = padded.unfold(-1, chunk, hop)
