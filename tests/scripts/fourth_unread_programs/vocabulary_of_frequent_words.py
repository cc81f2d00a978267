from collections import Counter

import torch
import torch.nn as nn

torch.manual_seed(0)
data = ["the cat saw the dog".split(), "the dog saw a bird".split()]


def build_vocab(data, min_freq=1):
    counter = Counter(word for line in data for word in line)
    words = ["<unk>", "<pad>"] + [word for word, n in counter.items() if n >= min_freq]
    return {word: i for i, word in enumerate(words)}


def numericalize(data, stoi):
    return torch.tensor([[stoi.get(word, 0) for word in line] for line in data])


full = build_vocab(data)
en = build_vocab(data, min_freq=2)
batch = numericalize(data, full)
embedding = nn.Embedding(len(en), 4, padding_idx=1)
embedded = embedding(batch)
