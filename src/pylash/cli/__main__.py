"""``python -m pylash.cli`` is the command line, too."""

from pylash.cli import command_line

if __name__ == "__main__":
    command_line()
