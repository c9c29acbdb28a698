"""``python -m pylash``: the command line."""

from pylash.cli import command_line

if __name__ == "__main__":
    command_line()
