"""`medusa forget`: removes what recycling has kept of earlier conversations."""

from __future__ import annotations


def forget() -> None:
    """Delete what --history has saved (likely tokens from your conversations), for all models."""
    from medusa_cli.decoding import history
    from medusa_cli.support.units import size

    files, taken = history.forget()
    if files:
        print(f"removed {files} {'file' if files == 1 else 'files'}, {size(taken)}, from {history.folder()}")
    else:
        print(f"nothing is stored in {history.folder()}")
