"""``python -m torchtap``."""

from torchtap.cli.app import main

if __name__ == "__main__":
    main()
