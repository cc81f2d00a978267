"""Prints what a script can see of how it was started."""
import os
import signal
import sys

print(sys.argv, sys.path[0], __file__, __name__, __doc__, __spec__, __package__)
print(sorted(name for name in globals() if name.startswith("__")), type(__loader__).__name__)
print(sys.modules["__main__"].__dict__ is globals(), type(__builtins__).__name__)
print(sys.stdout.errors, sys.stderr.errors, sys.excepthook is sys.__excepthook__)
print({key: value for key, value in os.environ.items() if key.startswith(("OMP", "TORCH", "KMP"))})
print("torch" in sys.modules, "numpy" in sys.modules, os.getcwd())
print(signal.getsignal(signal.SIGINT))
