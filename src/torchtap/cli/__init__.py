"""The command line: words to calls, values to text and an exit code.

In the order in which it is read:

- :mod:`~torchtap.cli.app`: the list of commands, and what becomes an exit code.
- :mod:`~torchtap.cli.commands_read` (``ls``, ``show``, ``stats``: of a run) and
  :mod:`~torchtap.cli.commands_run` (``demo``, ``record``, ``summary``, ``maps``: of a model). A new
  command is a function there, and a name in the list.
- :mod:`~torchtap.cli.commands_script`: ``run``, of a training script.
  :mod:`~torchtap.cli.script.launch` watches it from its first line to the end of the process,
  :mod:`~torchtap.cli.script.as_main` runs it as Python does, and
  :mod:`~torchtap.cli.script.files` or :mod:`~torchtap.cli.script.folders` saves what was recorded.
- :mod:`~torchtap.cli.options`, :mod:`~torchtap.cli.parsing`: options that several commands share;
  from words to values.
- :mod:`~torchtap.cli.model`, :mod:`~torchtap.cli.batch`, :mod:`~torchtap.cli.loss_option`: the
  model, its inputs and its loss, from files and names;
  :mod:`~torchtap.cli.failures` says why one fails.
- :mod:`~torchtap.cli.raised`: tracebacks without the calls that lead into the user's code.
- :mod:`~torchtap.cli.output`: what is printed. :mod:`~torchtap.cli.demo`: the sheet of
  ``torchtap demo``.
"""
