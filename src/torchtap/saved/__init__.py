"""Count the tensors that autograd saves for backward, advise on them, and move them.

Two public functions count, and move nothing:

- :mod:`~torchtap.saved.report`: ``tt.saved_report``. :mod:`~torchtap.saved.meter` hears of what is
  saved, :mod:`~torchtap.saved.totals` adds it up by module, :mod:`~torchtap.saved.storages` knows
  which storages a tensor keeps alive and which of them are buffers.
- :mod:`~torchtap.saved.advise`: ``tt.advise_offload``. :mod:`~torchtap.saved.profile` times one
  step, :mod:`~torchtap.saved.choose_modules` chooses the modules.

``tt.offload`` moves. Its files, in the order in which they are best read:

- :mod:`~torchtap.saved.offload`: the public function and its handle;
  :mod:`~torchtap.saved.offload_request` checks the arguments, :mod:`~torchtap.saved.parse_tiers`
  reads ``to``, :mod:`~torchtap.saved.offload_notes` says what did not happen,
  :mod:`~torchtap.hooks.scope` puts the hooks on while the model runs,
  :mod:`~torchtap.saved.suspend` takes them off for a while, and
  :mod:`~torchtap.saved.gradient_check` compares gradients with those of a plain step.
- :mod:`~torchtap.saved.layout`: the layout of a tensor; :mod:`~torchtap.saved.block`: what autograd
  holds in place of it.
- :mod:`~torchtap.saved.engine`: packs, evicts, fetches; :mod:`~torchtap.saved.prefetch` fetches
  before backward asks, in threads of :mod:`~torchtap.saved.workers`;
  :mod:`~torchtap.saved.ledger` counts, for :mod:`~torchtap.saved.offload_report`.
- :mod:`~torchtap.saved.tier_chain` chooses among the :mod:`~torchtap.saved.tiers`, where evicted
  tensors are kept: :mod:`~torchtap.saved.streams` (host memory),
  :mod:`~torchtap.saved.spill_file` (disk), :mod:`~torchtap.saved.codecs` (encoded).
  :mod:`~torchtap.saved.free_list` finds space for the first two.
- :mod:`~torchtap.saved.forks` notices a child process, :mod:`~torchtap.saved.heap` returns freed
  memory to the system.
"""
