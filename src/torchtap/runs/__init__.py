"""How a run is kept and read again: in memory, or in one safetensors file."""
