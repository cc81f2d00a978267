import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
vocabulary = [f"w{i}" for i in range(30)]
config = BertConfig(vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertModel(config).eval()
before = model.get_input_embeddings().weight.detach().clone()
vocabulary += ["[E1]", "[E2]"]                 # tokenizer.add_special_tokens
input_ids = torch.tensor([[2, 30, 7, 31, 3]])
hidden = model(input_ids=input_ids).last_hidden_state
