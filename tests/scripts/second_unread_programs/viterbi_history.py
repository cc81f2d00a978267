import torch

torch.manual_seed(0)
batch_size, seq_len, tag_size = 2, 4, 3
scores = torch.randn(seq_len, batch_size, tag_size, tag_size)

partition_history = []
inivalues = scores[0]
partition = inivalues[:, 0, :].clone().view(batch_size, tag_size, 1)
partition_history.append(partition)
for idx in range(1, seq_len):
    cur_values = scores[idx] + partition.contiguous().view(batch_size, tag_size, 1).expand(batch_size, tag_size, tag_size)
    partition, cur_bp = torch.max(cur_values, 1)
    partition_history.append(partition)
partition_history = torch.cat(partition_history, 0).view(seq_len, batch_size, -1).transpose(1, 0).contiguous()
