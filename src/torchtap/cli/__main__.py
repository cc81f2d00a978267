"""``python -m torchtap.cli``."""

from torchtap.cli import main

if __name__ == "__main__":
    main()
