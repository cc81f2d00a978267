from collections import deque

import torch


class Env:
    def __init__(self, history_length=4):
        self.window = history_length
        self.state_buffer = deque([], maxlen=history_length)

    def _get_state(self):
        return torch.ones(6, 6) * 0.5

    def _reset_buffer(self):
        for _ in range(self.window):
            self.state_buffer.append(torch.zeros(6, 6))

    def reset(self):
        self._reset_buffer()
        observation = self._get_state()
        self.state_buffer.append(observation)
        return torch.stack(self.state_buffer, 0)


env = Env()
state = env.reset()
