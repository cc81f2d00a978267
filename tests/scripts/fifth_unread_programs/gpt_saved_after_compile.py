import torch
import torch.nn as nn

torch.manual_seed(123)
GPT_CONFIG = {"vocab_size": 20, "context_length": 8, "emb_dim": 6}


class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg["vocab_size"], cfg["emb_dim"])
        self.pos_emb = nn.Embedding(cfg["context_length"], cfg["emb_dim"])
        self.out_head = nn.Linear(cfg["emb_dim"], cfg["vocab_size"], bias=False)

    def forward(self, in_idx):
        pos = torch.arange(in_idx.shape[1], device=in_idx.device)
        return self.out_head(self.tok_emb(in_idx) + self.pos_emb(pos))


model = GPTModel(GPT_CONFIG)
model = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

# train_model_simple(...) is left out here
torch.save(model.state_dict(), "model.pth")

fresh = GPTModel(GPT_CONFIG)
fresh.load_state_dict(torch.load("model.pth", weights_only=True))
fresh.eval()
