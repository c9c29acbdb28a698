"""Opening a host: stores and secrets from arguments and from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylash import CustomWait, LashError, Ok, ProcessScope, open_host
from pylash.testing import SimClock
from pylash.testing.laws.controllers import forbidden, raising, returning, step, value_of

SCOPE = ProcessScope("p")
OLD, NEW = "the old secret of ours", "the new secret of ours"


async def key_with(secret: str | list[str] | None, url: str) -> str:
    async with open_host(url, secret=secret) as host:
        return await host.wait_key(SCOPE, CustomWait("go"))


async def test_what_was_recorded_is_there_when_the_host_is_opened_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    async with open_host(url) as host:
        assert await value_of(host.scoped(SCOPE), step("one"), returning(1)) == 1
    async with open_host(url) as host:
        assert await value_of(host.scoped(SCOPE), step("one"), forbidden()) == 1


async def test_the_store_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYLASH_STORE", f"sqlite:///{tmp_path}/from-env.db")
    async with open_host():
        assert (tmp_path / "from-env.db").exists()


async def test_the_default_store_is_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYLASH_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    async with open_host():
        assert (tmp_path / "pylash.db").exists()


async def test_a_store_signs_with_a_secret_of_its_own(tmp_path: Path) -> None:
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    assert await key_with(None, one) == await key_with(None, one)
    assert await key_with(None, one) != await key_with(None, two)


async def test_secrets_can_be_given_and_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    key = await key_with(OLD, url)
    monkeypatch.setenv("PYLASH_SECRET", OLD)
    assert await key_with(None, url) == key
    async with open_host(url, secret=[NEW, OLD]) as host:
        assert (await host.resolve(key, Ok(1))).status == "accepted"
    async with open_host(url, secret=NEW) as host:
        assert (await host.resolve(key, Ok(1))).status == "unknown_or_revoked"


@pytest.mark.parametrize("secret", ["", "short", []])
async def test_a_weak_secret_is_refused_and_the_store_closed(
    tmp_path: Path, secret: str | list[str]
) -> None:
    with pytest.raises(LashError) as caught:
        await key_with(secret, f"sqlite:///{tmp_path}/agents.db")
    assert caught.value.code == "secret_invalid"


async def test_a_failure_shows_where_it_came_from_while_it_is_live() -> None:
    async with open_host("memory://", clock=SimClock()) as host:
        with pytest.raises(LashError) as caught:
            await host.scoped(SCOPE).execute(step("boom"), raising(KeyError("order")))
        assert str(caught.value) == "KeyError: 'order' [step_failed]"
        assert isinstance(caught.value.__cause__, KeyError)
