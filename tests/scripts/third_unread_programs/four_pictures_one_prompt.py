import torch
import torch.nn as nn

torch.manual_seed(0)


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim, heads=2, dim_head=4):
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(query_dim, heads * dim_head, bias=False)
        self.to_k = nn.Linear(context_dim, heads * dim_head, bias=False)

    def reshape_heads_to_batch_dim(self, tensor):
        batch_size, seq_len, dim = tensor.shape
        tensor = tensor.reshape(batch_size, seq_len, self.heads, dim // self.heads)
        return tensor.permute(0, 2, 1, 3).reshape(batch_size * self.heads, seq_len, dim // self.heads)

    def forward(self, hidden_states, context):
        query = self.reshape_heads_to_batch_dim(self.to_q(hidden_states))
        key = self.reshape_heads_to_batch_dim(self.to_k(context))
        return (torch.einsum("b i d, b j d -> b i j", query, key) * self.scale).softmax(dim=-1)


attn = CrossAttention(6, 5)
latents = torch.randn(4, 9, 6)
text_embeddings = torch.randn(1, 7, 5)
weights = attn(latents, text_embeddings)
