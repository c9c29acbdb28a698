"""``python -m pylash.cli`` is the command line, too."""

from pylash.cli import main

main()
