"""Names of the SDK that are not documented, and that ``sdk_journal`` uses: a release without one of them is not supported."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from restate import vm
from restate.server_context import DisconnectedException, ServerInvocationContext
from restate.server_types import ReceiveChannel

from pylash.restate import sdk_journal

SOURCE = Path(sdk_journal.__file__).read_text()


def used(owner: str) -> list[str]:
    """Return the names of an object that the module uses."""
    return sorted(set(re.findall(rf"self\.{owner}\.(\w+)", SOURCE)))


@pytest.mark.parametrize("name", used("_vm"))
def test_the_state_machine_has_what_is_used_of_it(name: str) -> None:
    assert callable(getattr(vm.VMWrapper, name))


def test_the_state_machine_takes_the_arguments_that_it_is_given() -> None:
    assert list(inspect.signature(vm.VMWrapper.sys_run).parameters) == ["self", "name"]
    assert list(inspect.signature(vm.VMWrapper.sys_sleep).parameters) == ["self", "millis", "name"]
    assert set(vm.Run.__annotations__) == {"handle", "replayed"}


def test_the_context_has_what_is_used_of_it() -> None:
    assert used("_context") == ["receive", "take_and_send_output"]
    assert callable(ServerInvocationContext.take_and_send_output)
    assert inspect.iscoroutinefunction(ReceiveChannel.enqueue_restate_event)
    assert inspect.iscoroutinefunction(ReceiveChannel.__call__)
    given = inspect.signature(ServerInvocationContext.__init__).parameters
    assert {"vm", "receive"} <= set(given)
    assert issubclass(DisconnectedException, Exception)
