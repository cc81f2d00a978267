import torch
import torch.nn as nn

torch.manual_seed(0)
policy_net = nn.Linear(4, 5)
state_batch, action_batch = torch.randn(8, 4), torch.randint(0, 5, (8,))
q = policy_net(state_batch)
state_action_values = q.gather(1, action_batch)
loss = nn.functional.smooth_l1_loss(state_action_values.reshape(-1), torch.ones(8))
loss.backward()
