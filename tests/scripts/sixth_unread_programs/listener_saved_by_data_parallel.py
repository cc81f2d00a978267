import torch
import torch.nn as nn

torch.manual_seed(0)


class EncoderLSTM(nn.Module):
    def __init__(self, vocab_size=12, embedding_size=4, hidden_size=6):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.lstm = nn.LSTM(embedding_size, hidden_size, batch_first=True)


class Agent:
    def __init__(self, encoder):
        self.encoder = encoder
        self.optimizer = torch.optim.Adam(encoder.parameters())

    def save(self, epoch, path):
        torch.save({'encoder': {'epoch': epoch + 1, 'state_dict': self.encoder.state_dict(),
                                'optimizer': self.optimizer.state_dict()}}, path)

    def load(self, path):
        states = torch.load(path)

        def recover_state(name, model, optimizer):
            state = model.state_dict()
            model_keys = set(state.keys())
            load_keys = set(states[name]['state_dict'].keys())
            if model_keys != load_keys:
                print("NOTICE: DIFFERENT KEYS FOUND")
            state.update(states[name]['state_dict'])
            model.load_state_dict(state)

        recover_state('encoder', self.encoder, self.optimizer)
        return states['encoder']['epoch'] - 1


trained = nn.DataParallel(EncoderLSTM())
Agent(trained).save(3, 'best_val_unseen')
fresh = EncoderLSTM()
epoch = Agent(fresh).load('best_val_unseen')
