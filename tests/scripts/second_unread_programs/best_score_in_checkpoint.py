import torch
from torch import nn
import numpy as np

torch.manual_seed(0)
network = nn.Linear(3, 2)
scores = np.array([0.71, 0.84, 0.8])
torch.save({"network_weights": network.state_dict(), "_best_ema": scores.max()}, "checkpoint_final.pth")
predictor = nn.Linear(3, 2)
checkpoint = torch.load("checkpoint_final.pth", map_location=torch.device("cpu"))
predictor.load_state_dict(checkpoint["network_weights"])
