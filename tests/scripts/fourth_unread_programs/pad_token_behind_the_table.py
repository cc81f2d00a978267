import torch
import torch.nn as nn

torch.manual_seed(0)


class Tokenizer:
    def __init__(self):
        self.vocab = {f"t{i}": i for i in range(32)}
        self.vocab["<placeholder>"] = 32

    def __len__(self):
        return len(self.vocab)

    def add_special_tokens(self, tokens):
        self.pad_token_id = self.vocab[tokens["pad_token"]] = len(self.vocab)

    def __call__(self, lines):
        width = max(map(len, lines))
        return torch.tensor([[self.vocab[t] for t in line] + [self.pad_token_id] * (width - len(line)) for line in lines])


class Model(nn.Module):
    def __init__(self, vocab_size=32, width=6):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, width)

    def resize_token_embeddings(self, size):
        old = self.embed_tokens
        self.embed_tokens = nn.Embedding(size, old.embedding_dim)
        self.embed_tokens.weight.data[: old.num_embeddings] = old.weight.data

    def forward(self, input_ids):
        return self.embed_tokens(input_ids)


tokenizer = Tokenizer()
tokenizer.add_special_tokens({"pad_token": "[PAD]"})
model = Model()
model.resize_token_embeddings(33)
hidden = model(tokenizer([["t1", "t2"], ["t3", "t4", "t5", "t6"]]))
