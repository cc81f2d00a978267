import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
text_encoder = nn.Embedding(30, 4)


def encode_prompt(prompt):
    ids = torch.tensor([[len(word) for word in prompt.split()]])
    return {'prompt_embeds': text_encoder(ids), 'attention_mask': torch.ones_like(ids, dtype=torch.bool)}


def collate_prompt_embeds(outputs):
    embeds, masks = [], []
    for output in outputs:
        embeds.append(output['prompt_embeds'])
        masks.append(output['attention_mask'])
    return torch.cat(embeds, dim=0), torch.cat(masks, dim=0)


captions = ['a cat on a mat', 'two dogs that sleep in the sun']
outputs = [encode_prompt(caption) for caption in captions]
prompt_embeds, mask = collate_prompt_embeds(outputs)
scores = (prompt_embeds @ prompt_embeds.transpose(1, 2)).masked_fill(~mask[:, None], float('-inf'))
pooled = scores.softmax(-1) @ prompt_embeds
