import torch
import torch.nn as nn

torch.manual_seed(0)


class GatherAcrossGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, group_size):
        ctx.group_size = group_size
        return hidden

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.group_size, None


def deepstack_process(hidden_states, visual_pos_masks, visual_embeds):
    visual_pos_masks = visual_pos_masks.to(hidden_states.device)
    visual_embeds = visual_embeds.to(hidden_states.dtype)
    local_this = hidden_states[visual_pos_masks, :].clone() + visual_embeds
    hidden_states[visual_pos_masks, :] = local_this
    return hidden_states


embed = nn.Embedding(10, 4)
layer = nn.Linear(4, 4)
input_ids = torch.tensor([[5, 1, 1, 7]])
visual_pos_masks = input_ids == 1
visual = torch.randn(2, 4, requires_grad=True)
states = layer(embed(input_ids))
hidden_states = GatherAcrossGroup.apply(states, 1)
out = deepstack_process(hidden_states, visual_pos_masks, visual)
out.sum().backward()
