"""``python -m torchtap.cli``."""

from torchtap.cli.app import main

if __name__ == "__main__":
    main()
