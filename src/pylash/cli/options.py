"""The options that all commands have. The help needs them, so nothing heavy is imported here."""

import click

store_option = click.option(
    "--store",
    metavar="STORE",
    help="The store: sqlite:///FILE, postgresql://…, or MODULE:APP for that of an app.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for programs to read."
)
