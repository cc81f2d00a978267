import random

import torch
import torch.nn as nn

random.seed(4)
torch.manual_seed(0)
vocab_size = 50


def gen_radix_tree(num_nodes=12, chunk_len=16):
    num0 = num_nodes // 2
    num1 = num_nodes - num0
    nodes = [{'input_ids': [37] * chunk_len}]
    for _ in range(num0):
        parent = random.choice(nodes)
        unique_len = random.randint(0, chunk_len)
        token_id = random.randint(0, vocab_size)
        nodes.append({'input_ids': parent['input_ids'] + [token_id] * unique_len})
    while num1 > 0:
        num_branch = random.randint(1, min(num1, 10))
        parent = random.choice(nodes)
        for _ in range(num_branch):
            token_id = random.randint(0, vocab_size)
            nodes.append({'input_ids': parent['input_ids'] + [token_id] * random.randint(0, chunk_len)})
        num1 -= num_branch
    random.shuffle(nodes)
    return [node['input_ids'] for node in nodes[:num_nodes]]


embed = nn.Embedding(vocab_size, 8)
lm_head = nn.Linear(8, vocab_size)
reqs = [ids for _ in range(20) for ids in gen_radix_tree()][:240]
outputs = []
for i, input_ids in enumerate(reqs):
    h = embed(torch.tensor(input_ids)).mean(0)
    outputs.append(lm_head(h).argmax())
outputs = outputs[:12]
