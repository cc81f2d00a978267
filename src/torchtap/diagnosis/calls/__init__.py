"""``tt.record_call``, ``tt.replay`` and ``tt.audit``: one call of one module, held and run again.

- ``standalone/`` needs only torch: how a held call runs again, and how it is read from a folder.
  An exported script is made of the text of these files.
- ``copies``: nested values and modules by value, identity kept. ``capture``: what a call was given
  and what it gave, taken by hooks. ``feed``: a module is called with what another one was given.
- ``record_call``, ``replay``, ``call``: the public functions and what they return.
- ``writing`` and ``export``: a call as JSON and safetensors, and as a script.
- ``audit``: the rounding of each module against float64.
"""
