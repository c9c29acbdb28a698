"""Wait keys: signed, versioned, and verified by several secrets."""

from __future__ import annotations

import hashlib

import pytest

from pylash.durable.scopes import ProcessScope, TurnScope
from pylash.durable.waits import CustomWait, ProcessSignal, Signer, WaitName
from pylash.values.errors import SecretInvalid

OLD, NEW = b"old secret, long enough", b"new secret, long enough"
SCOPE = TurnScope("s", "t")


def test_a_key_names_its_wait() -> None:
    signer = Signer([OLD])
    name = WaitName(ProcessScope("p"), ProcessSignal("p", "go", 2), 3)
    assert signer.name(signer.key(name.scope, name.wait, name.generation)) == name


@pytest.mark.proves("D2")
def test_the_id_of_a_wait_is_the_hash_of_its_canonical_name() -> None:
    name = WaitName(ProcessScope("p"), CustomWait("go"))
    text = b'{"scope":{"process_id":"p","type":"process"},"wait":{"key":"go","type":"custom"}}'
    assert name.id == hashlib.sha256(text).hexdigest()
    assert name.promise == f"lash-await-event:{name.id}"


def test_after_a_change_of_secrets_old_keys_are_still_good() -> None:
    old = Signer([OLD]).key(SCOPE, CustomWait("go"))
    rotated = Signer([NEW, OLD])
    assert rotated.name(old) == WaitName(SCOPE, CustomWait("go"))
    new = rotated.key(SCOPE, CustomWait("go"))
    assert new != old
    assert Signer([OLD]).name(new) is None
    assert Signer([NEW]).name(old) is None


def test_a_key_holds_no_secret() -> None:
    assert OLD.hex() not in Signer([OLD]).key(SCOPE, CustomWait("go"))


@pytest.mark.parametrize("secrets", [[], [b""], [b"short"], [OLD, b"short"]])
def test_a_weak_secret_is_refused(secrets: list[bytes]) -> None:
    with pytest.raises(SecretInvalid, match="at least 16 bytes"):
        Signer(secrets)
