import numpy as np
import torch as T
import torch.nn as nn

T.manual_seed(0)
rng = np.random.default_rng(0)
n_actions, mem_size = 4, 6
action_memory = np.zeros((mem_size, n_actions), dtype=np.uint8)
actions = [0, 3, 1, 2, 1, 0]
for i, action in enumerate(actions):
    action_memory[i, action] = 1.0
state_memory = rng.standard_normal((mem_size, 8)).astype(np.float32)
new_state_memory = rng.standard_normal((mem_size, 8)).astype(np.float32)

Q_eval = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, n_actions))
batch_index = np.arange(mem_size)
action_batch = action_memory
action_space = np.arange(n_actions, dtype=np.uint8)
action_indices = T.tensor(np.dot(action_batch, action_space))
reward_batch = T.ones(mem_size)

q_eval = Q_eval(T.tensor(state_memory))
q_next = Q_eval(T.tensor(new_state_memory)).detach()
q_target = q_eval.detach().clone()
q_target[batch_index, action_indices] = reward_batch + 0.99 * T.max(q_next, dim=1)[0]
loss = nn.functional.mse_loss(q_eval, q_target)
loss.backward()
