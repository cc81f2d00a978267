"""Watches what a program trains, where the program does not ask for it: ``torchtap run``.

In the order in which it is read:

- :mod:`~torchtap.capture.training.stepping`: watches each model that is found, and ends its steps.
  :mod:`~torchtap.capture.training.process_hooks`: by which it hears of them.
- :mod:`~torchtap.capture.training.live_models`: finds the models that optimizers hold.
  :mod:`~torchtap.capture.training.known_optimizers` are these optimizers,
  :mod:`~torchtap.capture.training.watched_models` the models, and
  :mod:`~torchtap.capture.training.trained_model` is one of them, with its hooks.
- :mod:`~torchtap.capture.training.optimizer_cycle`: when a step ends.
  :mod:`~torchtap.capture.training.scalers`: steps that ``GradScaler`` skips; asked by
  the ports ``step_grad`` and ``update`` too.
"""
