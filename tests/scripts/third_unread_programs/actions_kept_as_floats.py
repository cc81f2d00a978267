import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
np.random.seed(0)


class ReplayBuffer:
    def __init__(self, max_size, input_shape):
        self.state_memory = np.random.rand(max_size, *input_shape).astype(np.float32)
        self.action_memory = np.zeros(max_size, dtype=np.float32)
        self.action_memory[:] = np.random.randint(0, 3, max_size)

    def sample_buffer(self, batch_size):
        batch = np.random.choice(len(self.state_memory), batch_size, replace=False)
        return self.state_memory[batch], self.action_memory[batch]


q_eval = nn.Linear(5, 3)
memory = ReplayBuffer(20, (5,))
state, action = memory.sample_buffer(6)
states = torch.tensor(state)
actions = torch.tensor(action)
indices = torch.arange(6)
q_pred = q_eval(states)[indices, actions]
loss = q_pred.pow(2).mean()
loss.backward()
