"""Triggers: the writes of subscriptions, occurrences and deliveries, which ``ports.triggers`` executes."""

from __future__ import annotations

# The same key replaces a subscription, unless it is enabled and belongs to another session.
REGISTER = """
insert into pylash_triggers(key, type, source, target, body, session, created)
values (?, ?, ?, ?, ?, ?, {now})
on conflict (key) do update set type = excluded.type, source = excluded.source,
  target = excluded.target, body = excluded.body, session = excluded.session, enabled = 1
where pylash_triggers.enabled = 0
  or coalesce(pylash_triggers.session, '') = coalesce(excluded.session, '')"""

CANCEL = "update pylash_triggers set enabled = 0 where key = ? and enabled = 1"

# No session has an empty id.
CANCEL_OWNED = f"{CANCEL} and coalesce(session, '') = ?"

ADD_OCCURRENCE = """
insert into pylash_occurrences(id, type, source, digest, payload, at) values (?, ?, ?, ?, ?, {now})
on conflict do nothing"""

ADD_DELIVERY = """
insert into pylash_deliveries(occurrence, subscription, process) values (?, ?, ?)
on conflict do nothing"""

FORGET_SUBSCRIPTIONS = "delete from pylash_triggers where session = ?"
