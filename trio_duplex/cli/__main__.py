"""``python -m trio_duplex.cli``."""

from __future__ import annotations

from trio_duplex.cli import main

if __name__ == "__main__":
    main()
