"""Static maps: what an entry can touch, as data and as pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from pylash.lang.maps import ExecutionMap, static_map
from pylash.lang.sites import arms, sites
from pylash.values.process_errors import ProcessNotInModule
from tests.lang.host import made

SOURCE = """
process child() { finish 1 }
@label(title: "Whole", description: "all of it")
process whole(t: Tools) signals { go: any } {
  x = await [tools.echo(1)?, t.echo(2)?]
  @label(title: "Decide")
  if tools.echo(x)? { h = start child() } else if x { yield 1 } else { fail 2 }
  sleep until 5
  signal run x go with wait signal go
  y = x ? tools.echo(far.away.call(1)) : 2
  z = [start whole(t: tools), start child(), timer.schedule({ every: "1" })]
  cancel x
  finish f(y)
}
fn f(x: int) -> int { x > 1 ? 1 : 2 }
print tools.lookup({ key: "a" })
"""


def drawn(process: str | None = "whole", source: str = SOURCE) -> ExecutionMap:
    return static_map(made(source), process)


def edges(found: ExecutionMap) -> list[str]:
    names = {node.id: f"{node.kind} {node.label}" for node in found.nodes}
    return [f"{names[edge.source]} -{edge.label}> {names[edge.to]}" for edge in found.edges]


def test_a_map_shows_every_site_under_its_parent_in_the_order_of_running() -> None:
    whole = "process whole"
    assert edges(drawn()) == [
        f"{whole} -calls> resource_operation echo",
        "resource_operation echo -uses> resource tools",
        f"{whole} -calls> resource_operation echo",
        "resource_operation echo -uses> resource Tools",
        f"{whole} -steps> step Decide",
        "step Decide -calls> resource_operation echo",
        "resource_operation echo -uses> resource tools",
        "step Decide -branches> branch if",
        "branch if -then> branch_arm then",
        "branch if -else> branch_arm else",
        "branch_arm then -starts> child_process start child",
        "child_process start child -child> process child",
        "branch_arm else -branches> branch if",
        "branch if -then> branch_arm then",
        "branch if -else> branch_arm else",
        "branch_arm then -emits> process_event yield",
        "branch_arm else -terminates> terminal failure",
        f"{whole} -sleeps> sleep sleep until",
        f"{whole} -waits> wait wait signal go",
        f"{whole} -signals> signal signal run go",
        f"{whole} -branches> branch if",
        "branch if -then> branch_arm then",
        "branch if -else> branch_arm else",
        "branch_arm then -calls> resource_operation call",
        "resource_operation call -uses> resource far.away",
        "branch_arm then -calls> resource_operation echo",
        "resource_operation echo -uses> resource tools",
        f"{whole} -starts> child_process start whole",
        f"child_process start whole -child> {whole}",
        f"{whole} -starts> child_process start child",
        "child_process start child -child> process child",
        f"{whole} -terminates> terminal result",
    ]


def test_a_map_of_main() -> None:
    found = drawn(None)
    assert (found.entry, found.entry_name) == ("main", "main")
    assert edges(found) == [
        "main main -calls> resource_operation lookup",
        "resource_operation lookup -uses> resource tools",
    ]


def test_titles_come_from_labels() -> None:
    plain = drawn().to_dict()
    entry = plain["nodes"][0]
    assert (entry["title"], entry["description"]) == ("Whole", "all of it")
    step = next(node for node in plain["nodes"] if node["kind"] == "step")
    assert (step["label"], step["title"]) == ("Decide", "Decide")
    assert "description" not in step
    assert set(plain["edges"][0]) == {"from", "to", "label"}


def test_every_id_that_a_trace_can_name_is_in_the_map() -> None:
    stored = made(SOURCE)
    found = {node.id for node in static_map(stored, "whole").nodes}
    ids = sites(stored.module_ref, "process", "whole", stored.canonical.processes[1]).values()
    traced = {each for each in ids if not each.startswith(("await:", "cancel:"))}
    assert traced < found
    assert {arm for each in traced if each.startswith("branch:") for arm in arms(each)} < found


def test_ids_of_nodes_are_unique() -> None:
    nodes = drawn().nodes
    assert len({node.id for node in nodes}) == len(nodes)


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(ProcessNotInModule, match="child, whole"):
        drawn("nobody")


# Pictures

NASTY = """
@label(title: "</text><script>alert(1)</script>", description: "a ]]> \\"b\\" & 'c' # --> |x| `y`")
process main() {
  @label(title: "x\\"]; click n0 evil\\n%%{init}%% <b>&amp;</b> #quot;")
  finish 1
}
"""


def test_mermaid_shows_nodes_and_edges() -> None:
    lines = drawn().to_mermaid().splitlines()
    assert lines[:3] == ["flowchart TD", '  n0(["whole: Whole"])', '  n1["echo"]']
    assert "  n0 -->|calls| n1" in lines


def test_mermaid_holds_no_text_that_it_could_read_as_its_own() -> None:
    for line in drawn("main", NASTY).to_mermaid().splitlines()[1:]:
        assert re.fullmatch(r'  n\d+(\W+"([\w .,:/-]|#\d+;)*"\W+| -->\|\w+\| n\d+)', line), line


def test_svg_is_a_picture_of_every_node() -> None:
    found = drawn()
    root = ET.fromstring(found.to_svg())
    space = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{space}g")
    assert len(boxes) == len(found.nodes)
    assert len(root.findall(f"{space}path")) == len(found.edges)
    rects = root.findall(f"{space}g/{space}rect")
    assert len({(rect.get("x"), rect.get("y")) for rect in rects}) == len(found.nodes)


def test_svg_escapes_what_the_author_wrote() -> None:
    picture = drawn("main", NASTY).to_svg()
    root = ET.fromstring(picture)
    assert "<script" not in picture
    assert root.findall(".//{http://www.w3.org/2000/svg}script") == []
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "main: </text><script>alert(1)</script>" in texts


def test_svg_holds_any_character_of_a_label() -> None:
    picture = drawn("p", "@label(title: 'a\x00\ufffe')\nprocess p() { }")
    ET.fromstring(picture.to_svg())
