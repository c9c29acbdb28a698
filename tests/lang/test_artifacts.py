"""Identity: what changes a reference, what does not, and what a reader makes of a stored module."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.lang.artifacts import (
    Artifact,
    ArtifactDamaged,
    decode_artifact,
    definitions,
    encode_artifact,
    incompatibility,
    places_of,
    verified,
)
from pylash.lang.flat import flat, unflat
from pylash.lang.sites import sites
from pylash.lang.static_types import show_type
from pylash.lang.surface import Surface, surface_of
from pylash.lang.tree import Module, Number, walk
from tests.lang.host import DOCUMENT, made

WORKFLOW = """
type Order = { id: str, lines: list[timer.Tick]? }

@label(title: "Refund", description: "asks first")
process refund(order: Order, tool: Tools) signals { answer: bool } -> any {
  found = await tool.lookup({ key: order.id })?
  total = 0
  for line in [1, 2] {
    total = total + double(line)
  }
  @label(title: "Ask")
  wake "Refund " + found.name + "?"
  if not (wait signal answer within "2d") { fail "no" } else { sleep for 1.5 }
  both = await { a: tools.echo(total)?, b: (tools.echo(2)?) }
  finish total > 3 and both.a ? [n for n in both.b if n != null] : Type { o: Order }
}
fn double(n: int) -> int { m = n * 2; m }
h = start refund(order: { id: "A" }, tool: tools)
"""
RESPELT = """
type Order = {id:string,"lines":list[timer.Tick]?};
# the same program with other names
@label(description: 'asks first', title: '''Refund''')
process refund(order: Order, tool: Tools) signals { answer: boolean } -> any {
    let hit = (await tool.lookup({ "key": order.id }))?
    let sum = 0.0;
    for each in [1.0, 2] { let sum = (sum + double((each))) }
    @label(title: "Ask",)
    wake "Refund " + hit.name + '?'
    if !(wait signal answer within '2d') {
        fail "no"
    } else {
        sleep for 1.50
    }
    two = await { a: tools.echo(sum)?, b: (tools.echo(2)?), }
    finish sum > 3 && two.a
        ? [x for x in two.b if x != null]
        : Type { o: Order }
}
fn double(n: integer) -> int { k = n * 2; k }
h = start refund(order: { id: "A" }, tool: tools)
"""


GOLDEN = (
    "lashlang:v1:sha256:cbb61465651e4d958f4f9bba8e334c00e9abb6689b48a46cb6bef99f8ec1e7c7",
    "lashlang-surface:v1:sha256:5e7743ae580dd2ed06896500c775054a8950f3278568f4177d1997e51c1c5384",
    "lashlang-process:v1:sha256:6cb9d264a790b8207535cab8bb4a13211a9e9a9e6c39be1c38a4ea403138b907",
)


def references(stored: Artifact) -> tuple[str, str, str]:
    return stored.module_ref, stored.required_surface_ref, stored.processes["refund"]


def test_references_never_change() -> None:
    """A stored process is found by these: where they must change, the version tag changes."""
    assert references(made(WORKFLOW)) == GOLDEN


def test_spelling_changes_no_reference() -> None:
    assert references(made(RESPELT)) == references(made(WORKFLOW))


CHANGES = {
    "a number": ("total = 0", "total = 1"),
    "an operator": ("n * 2", "n + 2"),
    "a label": ('title: "Ask"', 'title: "Tell"'),
    "a parameter": ("order", "bill"),
    "parentheses that say when to unwrap": ("(tools.echo(2)?)", "tools.echo(2)?"),
    "the order of statements": (
        "total = 0\n  for line in [1, 2] {\n    total = total + double(line)\n  }",
        "for line in [1, 2] {\n    total = 0\n    total = total + double(line)\n  }",
    ),
    "a number instead of its text": ('within "2d"', "within 2"),
    "a result type": ("-> any", "-> any | null"),
    "a signal": ("answer: bool", "answer: int"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_behaviour_changes_the_references_of_process_and_module(change: str) -> None:
    old, new = CHANGES[change]
    changed = WORKFLOW.replace(old, new)
    assert changed != WORKFLOW
    before, after = references(made(WORKFLOW)), references(made(changed))
    if change == "an operator":  # it is in the function: only the reference of the module changes
        assert before[2] == after[2]
    else:
        assert before[2] != after[2]
    assert before[0] != after[0]


def test_what_a_process_refers_to_does_not_change_its_own_reference() -> None:
    changed = WORKFLOW.replace("{ id: str,", "{ id: str, x: int?,") + "process other() { }\n"
    before, after = references(made(WORKFLOW)), references(made(changed))
    assert before[0] != after[0]
    assert before[1:] == after[1:]


def patched(**changes: Any) -> Surface:
    return surface_of({**DOCUMENT, **changes})


def test_only_the_used_part_of_a_surface_counts() -> None:
    more = patched(types={**DOCUMENT["types"], "Unused": "int"})
    assert references(made(WORKFLOW, more)) == references(made(WORKFLOW))
    other = patched(types={"timer.Tick": "{ at: str, zone: str? }"})
    before, after = references(made(WORKFLOW)), references(made(WORKFLOW, other))
    assert before[2] == after[2]
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_an_artifact_comes_back_as_it_was() -> None:
    stored = made(WORKFLOW)
    back = verified(decode_artifact(encode_artifact(stored)))
    assert back == stored
    assert list(places_of(back).values()) == list(places_of(stored).values())


def test_places_and_names_help_people_and_are_not_hashed() -> None:
    stored = made(WORKFLOW)
    (process,) = stored.canonical.processes
    assert places_of(stored)[id(process.body[0])][:2] == (6, 3)
    assert stored.names["process refund"][:3] == ("found", "total", "line")
    moved = msgspec.structs.replace(stored, names={}, places=[], source="")
    assert verified(moved) is moved


def test_definitions_are_those_of_module_and_surface() -> None:
    found = {name: show_type(type_) for name, type_ in definitions(made(WORKFLOW)).items()}
    assert found == {
        "Order": "{ id: str, lines: list[timer.Tick]? }",
        "timer.Tick": "{ at: str }",
    }


@pytest.mark.parametrize("field", ["module_ref", "required_surface_ref", "processes", "canonical"])
def test_a_module_that_does_not_have_its_hash_is_never_used(field: str) -> None:
    stored = made(WORKFLOW)
    other = made(WORKFLOW.replace("total = 0", "total = 1").replace("tools.echo", "far.away.call"))
    with pytest.raises(ArtifactDamaged) as refused:
        verified(msgspec.structs.replace(stored, **{field: getattr(other, field)}))
    assert refused.value.code == "process_module_artifact_missing"


@pytest.mark.parametrize(
    "change",
    [
        (b'"Finish"', b'"Finnish"'),
        (b'"canonical":["Module",', b'"canonical":['),
        (b'"canonical":["Module",1', b'"canonical":["Module",99999999'),
        (b'"source"', b'"sauce"'),
        (b"{", b""),
    ],
)
def test_bytes_that_are_no_artifact_are_refused(change: tuple[bytes, bytes]) -> None:
    data = encode_artifact(made(WORKFLOW))
    damaged = data.replace(*change)
    assert damaged != data
    with pytest.raises(ArtifactDamaged):
        verified(decode_artifact(damaged))


@given(st.data())
def test_any_altered_scalar_is_noticed(data: st.DataObject) -> None:
    stored = made("process refund(a: int) { x = a + 1; finish [x, 'text', null, true] }")
    items = list(flat(stored.canonical))
    index = data.draw(st.integers(0, len(items) - 1))
    other = data.draw(st.sampled_from([0, 7, 2.5, "x", "Null", None, False]))
    if other == items[index] and type(other) is type(items[index]):
        return
    try:
        tree = unflat([*items[:index], other, *items[index + 1 :]])
    except ValueError:
        return
    if isinstance(tree, Module):
        with pytest.raises(ArtifactDamaged):
            verified(msgspec.structs.replace(stored, canonical=tree))


@pytest.mark.slow
def test_the_deepest_programs_are_stored() -> None:
    inner = "1"
    for _ in range(28):
        inner = f"({'+'.join([inner, *'1' * 150])})"
    stored = made(f"finish {inner}")
    back = verified(decode_artifact(encode_artifact(stored)))
    assert sum(isinstance(node, Number) for node in walk(back.canonical)) == 28 * 150 + 1


# Does a host still offer what a module needs?

GONE = {
    "echo": {"modules": {**DOCUMENT["modules"], "tools": {"type": "Tools", "operations": {}}}},
    "mail": {"modules": {k: v for k, v in DOCUMENT["modules"].items() if k != "mail"}},
    "timer.Tick": {"types": {}},
    "timer.schedule": {"constructors": {}},
    "timer.Schedule": {"trigger_sources": {}},
}
USES_ALL = """
process p(ev: timer.Tick, t: Mail) {
  x = tools.echo(1)
  y = t.send({ to: "a", priority: "low" })
}
h = triggers.register({
  source: timer.schedule({ every: "1" }), target: p, inputs: { ev: trigger.event, t: mail }
})
"""


@pytest.mark.parametrize("what", GONE)
def test_what_a_host_no_longer_offers_is_named(what: str) -> None:
    required = made(USES_ALL).required_surface
    assert incompatibility(required, patched()) is None
    missing = incompatibility(required, patched(**GONE[what]))
    assert missing is not None
    assert f"`{what}`" in missing.replace("tools.", "")


def lookup(takes: str, gives: str, tool: str = "lookup") -> Surface:
    operations = {"lookup": {"id": tool, "input": takes, "output": gives}}
    return surface_of({"modules": {"tools": {"type": "Tools", "operations": operations}}})


@pytest.mark.parametrize(
    ("now", "fits"),
    [
        (lookup("{ key: str, more: int? }", "{ name: str, score: int, x: any }"), True),
        (lookup("{ key: str, more: int }", "{ name: str, score: int }"), False),
        (lookup("{ key: str }", "{ name: str }"), False),
        (lookup("{ key: str }", "{ name: str, score: int }", "another"), False),
        (lookup("any", "any"), True),
    ],
)
def test_an_operation_may_take_more_and_give_more(now: Surface, fits: bool) -> None:
    by_path = made("x = tools.lookup({ key: 'a' })").required_surface
    assert (incompatibility(by_path, now) is None) is fits


def test_abilities_are_for_linking_only() -> None:
    required = made("process p() { x = triggers.list({}) }\nh = start p()").required_surface
    assert incompatibility(required, patched(abilities=[])) is None


# Sites


def test_every_site_has_an_id_of_its_own_that_depends_on_module_entry_and_place() -> None:
    stored = made(WORKFLOW)
    (process,) = stored.canonical.processes
    found = sites(stored.module_ref, "process", "refund", process)
    assert len(set(found.values())) == len(found)
    kinds = sorted(each.partition(":")[0] for each in found.values())
    assert kinds == sorted(
        ["resource_operation"] * 3
        + ["await"] * 2
        + ["branch"] * 2
        + ["terminal"] * 2
        + ["process_event", "wait", "sleep", "step"]
    )
    again = verified(decode_artifact(encode_artifact(stored)))
    elsewhere = sites(stored.module_ref, "process", "refund", again.canonical.processes[0])
    assert list(elsewhere.values()) == list(found.values())
    other = sites("lashlang:v1:sha256:0", "process", "refund", process)
    assert not set(other.values()) & set(found.values())
