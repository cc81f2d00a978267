import pandas as pd
import torch
import torch.nn as nn

torch.manual_seed(0)

train_data = pd.DataFrame({'LotArea': [8450.0, 9600.0, 11250.0, 9550.0],
                           'YearBuilt': [2003.0, 1976.0, 2001.0, 1915.0],
                           'MSZoning': ['RL', 'RL', 'RM', 'RL'],
                           'SalePrice': [208500.0, 181500.0, 223500.0, 140000.0]})
test_data = train_data.iloc[:2, :3].copy()
all_features = pd.concat((train_data.iloc[:, :3], test_data))

numeric_features = ['LotArea', 'YearBuilt']
all_features[numeric_features] = all_features[numeric_features].apply(
    lambda x: (x - x.mean()) / (x.std()))
all_features = pd.get_dummies(all_features, dummy_na=True)

n_train = train_data.shape[0]
train_features = torch.tensor(all_features[:n_train].values, dtype=torch.float)
train_labels = torch.tensor(train_data.SalePrice.values, dtype=torch.float).view(-1, 1)

net = nn.Linear(train_features.shape[1], 1)
pred = net(train_features)
