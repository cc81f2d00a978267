import torch
from torch import nn

torch.manual_seed(0)


def seq_collate(seqs):
    obs_seq_list = torch.cat(seqs, dim=0)
    return obs_seq_list.permute(2, 0, 1)           # (time, pedestrian, xy)


class Encoder(nn.Module):
    def __init__(self, embedding_dim=5, h_dim=6):
        super().__init__()
        self.embedding_dim = embedding_dim
        self.spatial_embedding = nn.Linear(2, embedding_dim)
        self.encoder = nn.LSTM(embedding_dim, h_dim)

    def forward(self, obs_traj):
        batch = obs_traj.size(1)
        obs_traj_embedding = self.spatial_embedding(obs_traj.view(-1, 2))
        obs_traj_embedding = obs_traj_embedding.view(-1, batch, self.embedding_dim)
        output, state = self.encoder(obs_traj_embedding)
        return state[0]


obs_traj = seq_collate([torch.randn(3, 2, 8), torch.randn(2, 2, 8)])
encoder = Encoder()
final_h = encoder(obs_traj)
