"""``pylash export`` and ``import``: processes and sessions as files."""

from __future__ import annotations

from pathlib import Path

import click

from pylash.cli.output import paint, print_json, print_line
from pylash.cli.store_options import StoreOptions, run, with_store_options
from pylash.cli.views.lookup import find_run
from pylash.durable.exports import Export, needed_outside
from pylash.processes.exports import export as export_run
from pylash.processes.exports import import_file
from pylash.values.process_errors import RunUnknown
from pylash.values.texts import printable


@click.command()
@click.argument("id")
@click.option(
    "--children", is_flag=True, help="Add what it started or waited for, and their children."
)
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out all recorded values: it shows what happened, and cannot be imported.",
)
@click.option(
    "--keep-secrets",
    is_flag=True,
    help="Keep recorded values that look like secrets, for an import.",
)
@with_store_options
def export(
    options: StoreOptions,
    id: str,  # noqa: A002 - the name in the help
    children: bool,
    redact: bool,
    keep_secrets: bool,
) -> None:
    """Print a process or a session as JSON.

    It has its registration, log, journal, messages and open waits. ID is the id of a process or a session; of a turn (SESSION/TURN) its session is printed. A unique prefix is enough. The
    file is a copy: the process goes on where it is. pylash.testing.replay checks code against it, and pylash import
    continues it in another store.

    Values that look like secrets are left out unless --keep-secrets is given. Keys of waits are never printed: the store that
    imports the file signs its own. The file has everything else that the process was given and did, so keep it private.

    \b
      pylash export order-7 > order-7.json
      pylash export order-7 --children --keep-secrets > order-7.json
      pylash export chat-42 --redact
    """
    if redact and keep_secrets:
        raise click.UsageError(
            "--redact leaves out all values: --keep-secrets cannot be given with it."
        )
    found = run(_export(options, id, children, redact, keep_secrets))
    click.echo(found.to_json().decode(), nl=False)
    if found.hidden:
        _print_note(
            f"{found.hidden} values that look like secrets were left out; --keep-secrets keeps them for an import"
        )
    missing = [] if children or redact else [one for _, one in needed_outside(found)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        _print_note(
            f"it can be replayed and not imported: it needs {printable(missing[0])}{more}; --children adds what it needs"
        )


async def _export(
    options: StoreOptions, text: str, children: bool, redact: bool, keep_secrets: bool
) -> Export:
    async with options.open_store() as (_, store):
        found = await find_run(store, text)
        is_process = not isinstance(found, str) and found.kind == "process"
        process = found.id if not isinstance(found, str) and is_process else None
        session = found if isinstance(found, str) else found.session
        if process is None and session is None:
            raise RunUnknown(text)
        return await export_run(
            store,
            process_id=process,
            session_id=None if process is not None else session,
            children=children,
            redact=redact,
            keep_secrets=keep_secrets,
            engine=options.engine,
        )


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@with_store_options
def import_(options: StoreOptions, file: Path) -> None:
    """Add an exported process or session to the store; a worker continues it there.

    Everything is added in one transaction, or nothing: an id that exists is refused. Open waits get new keys. What the process
    waits for, and the children whose results it has not got yet, must be in the file (pylash export --children) or in the store.

    The copy in the other store is not stopped. Stop it before its worker and this one both continue it: export it while no worker
    runs, or end it there with pylash cancel --force.

    \b
      pylash import order-7.json --store postgresql://…
    """
    found = run(_import(options, file))
    processes, sessions = [one.id for one in found.processes], [one.id for one in found.sessions]
    if options.as_json:
        print_json(
            {"done": "imported", "id": found.id, "processes": processes, "sessions": sessions}
        )
        return
    for kind, ids in (("process", processes), ("session", sessions)):
        for one in ids:
            print_line(f"{paint('imported', 'green')}  {kind} {printable(one)}")


async def _import(options: StoreOptions, file: Path) -> Export:
    async with options.open_store() as (host, store):
        return await import_file(
            store, host.signer, file, engine=options.engine, now=host.clock.now()
        )


def _print_note(text: str) -> None:
    click.echo(f"{click.style('note:', fg='yellow')} {text}", err=True)
