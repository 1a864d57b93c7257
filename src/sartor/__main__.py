"""``python -m sartor``: the command, where its script is not on the path."""

from sartor.cli import main

if __name__ == "__main__":
    main()
