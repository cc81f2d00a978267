import torch
import torch.nn as nn

torch.manual_seed(0)


class BertConfig:
    vocab_size = 60
    hidden_size = 8
    max_position_embeddings = 32
    type_vocab_size = 2


class BertEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        self.register_buffer('position_ids', torch.arange(config.max_position_embeddings).expand((1, -1)))

    def forward(self, input_ids):
        seq_length = input_ids.size(1)
        position_ids = self.position_ids[:, :seq_length]
        inputs_embeds = self.word_embeddings(input_ids)
        position_embeddings = self.position_embeddings(position_ids)
        token_type_embeddings = self.token_type_embeddings(torch.zeros_like(input_ids))
        embeddings = inputs_embeds + position_embeddings + token_type_embeddings
        return self.LayerNorm(embeddings)


def pad(sentences):
    return nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sentences], batch_first=True)


config = BertConfig()
embed = BertEmbeddings(config)
sentences = [list(range(1, 41)), list(range(5, 17))]
subwords = pad(sentences)
bert = embed(subwords)
