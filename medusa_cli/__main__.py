"""`python -m medusa_cli` is the same as `medusa`."""

from medusa_cli.cli import main

if __name__ == "__main__":
    main()
