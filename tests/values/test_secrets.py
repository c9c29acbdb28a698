"""Secrets in texts: hidden however they are written."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylash.values.secrets import (
    environment_secrets,
    hide_and_cut,
    hide_secrets,
    shown_url,
    url_secrets,
)

SECRETS = ["correct-horse-battery", 'k"e/y\\ +ü\n%&x', "ünïcödé-sécrét"]


def _base64(before: bytes, encode: Callable[[bytes], bytes], padding: bool) -> Callable[[str], str]:
    def form(secret: str) -> str:
        made = encode(before + secret.encode() + b"?").decode()
        return made if padding else made.rstrip("=")

    return form


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json, not ascii": lambda secret: json.dumps(secret, ensure_ascii=False),
    "json in json": lambda secret: json.dumps(json.dumps({"key": secret})),
    "json, escaped slashes": lambda secret: json.dumps(secret).replace("/", r"\/"),
    "json in json, escaped slashes": lambda secret: json.dumps(
        json.dumps(secret).replace("/", r"\/")
    ).replace("/", r"\/"),
    "repr": repr,
    "ascii": ascii,
    "repr in json": lambda secret: json.dumps(repr(secret)),
    "bytes": lambda secret: repr(secret.encode()),
    "url": lambda secret: quote(secret, safe=""),
    "url, lower case": lambda secret: quote(secret, safe="").lower(),
    "path": quote,
    "form": quote_plus,
    "url in url": lambda secret: quote(quote(secret, safe=""), safe=""),
    "html": html.escape,
    "hex": lambda secret: secret.encode().hex().upper(),
    "basic": lambda secret: "Basic " + base64.b64encode(f"ann:{secret}".encode()).decode(),
    **{
        f"base64 {len(before)} {encode.__name__} {padding}": _base64(before, encode, padding)
        for before in (b"", b"a", b"ab", b"abc")
        for encode in (base64.b64encode, base64.urlsafe_b64encode)
        for padding in (True, False)
    },
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_every_form(form: str, secret: str) -> None:
    shown = hide_secrets(f"before {FORMS[form](secret)} after", [secret])
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert "[hidden]" in shown
    assert len(shown) < len("before [hidden] after") + 20


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("end", ["\n", "\r\n  ", r"\n", r"\r\n", r"\\n"])
def test_a_secret_in_base64_is_hidden_wherever_its_lines_end(end: str, secret: str) -> None:
    written = base64.b64encode(f"ann:{secret}".encode()).decode().replace("/", r"\/")
    for width in range(4, len(written), 3):
        lines = [written[at : at + width] for at in range(0, len(written), width)]
        shown = hide_secrets(f"before {end.join(lines)} after", [secret])
        assert shown.startswith("before ")
        assert shown.endswith(" after")
        assert len(shown) < len("before [hidden] after") + 20


@given(st.text(min_size=8, max_size=40), st.sampled_from(sorted(FORMS)), st.text(max_size=5))
def test_no_form_of_any_secret_stays(secret: str, form: str, around: str) -> None:
    try:
        written = FORMS[form](secret)
    except UnicodeEncodeError:  # half a character has no such form
        return
    assert written not in hide_secrets(f"{around} {written} {around}", [secret])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("with Bearer abc123def456.", "with Bearer [hidden]"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [hidden]"),
        ('{"authorization": "Bearer tok"}', '{"authorization": "Bearer [hidden]"}'),
        ('"{\\"x-api-key\\": \\"abc\\"}"', '"{\\"x-api-key\\": \\"[hidden]\\"}"'),
        ("Authorization: ApiKey abcdef1234567890", "Authorization: ApiKey [hidden]"),
        ("Authorization: Own abcdef 1234567890\nHost: x", "Authorization: [hidden]\nHost: x"),
        ("proxy-authorization: abcdef was refused", "proxy-authorization: [hidden]"),
        (
            "(i.e. Authorization: Bearer KEY), or else",
            "(i.e. Authorization: Bearer [hidden], or else",
        ),
        ('Authorization: Bearer "abc"', "Authorization: [hidden]"),
        ('Authorization: Token token="abc", x="d"', "Authorization: Token [hidden]"),
        ("{'Authorization': 'Own abc def', 'x': 1}", "{'Authorization': '[hidden]', 'x': 1}"),
        (
            r'{"authorization": "Digest user=\"ann\", response=\"abc\"", "x": 1}',
            '{"authorization": "Digest [hidden]", "x": 1}',
        ),
        (
            json.dumps(r'{"authorization": "Digest user=\"ann\", response=\"abc\"", "x": 1}'),
            r'"{\"authorization\": \"Digest [hidden]\", \"x\": 1}"',
        ),
        ("see https://ann:pw@host/x?y=1.", "see https://ann:[hidden]@host/x?y=1."),
        ("a://ann:p@g,b://bob:q@h x@y", "a://ann:[hidden]@g,b://bob:[hidden]@h x@y"),
        (r'{"url":"https:\/\/ann:pw@host\/x"}', r'{"url":"https:\/\/ann:[hidden]@host\/x"}'),
        (
            "http://:pw@host and http://ann:p@/?#w@host",
            "http://:[hidden]@host and http://ann:[hidden]@host",
        ),
        ("http://ann:p/w@host", "http://ann:[hidden]@host"),
        ("http://ann@a.org:pw@host", "http://ann@a.org:[hidden]@host"),
        ("git+ssh://git@host:22/a", "git+ssh://git@host:22/a"),
        ("http://host:80/@a/b, http://[::1]:80/a@b", "http://host:80/@a/b, http://[::1]:80/a@b"),
        ('{"a":"http://host:80","b":"x@y"}', '{"a":"http://host:80","b":"x@y"}'),
        ("postgresql://ann:***@host", "postgresql://ann:***@host"),
        ("?api_key=abc&x=1", "?api_key=[hidden]"),
        ("sk-abc123def456 and AIzaSyA1234567", "[hidden] and [hidden]"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxw here", "[hidden] here"),
        ("Basic authentication is required", "Basic authentication is required"),
        ("the bearer presented no token", "the bearer presented no token"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_looks_like_a_key_is_hidden_though_nobody_knows_it(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"json in json"}))
def test_a_text_is_cut_after_its_secrets_are_hidden(form: str) -> None:
    (secret, *_), written = SECRETS, FORMS[form](SECRETS[0])
    for limit in range(40, 100, 3):
        shown = hide_and_cut(f"{'.' * 50} {written} {'.' * 100}", limit, [secret])
        assert len(shown) <= limit + 1
        assert shown.endswith("…")
        assert written[2:8] not in shown


def test_of_a_long_text_only_the_beginning_is_looked_at_and_no_half_secret_stays() -> None:
    secret = SECRETS[0]
    for length in range(10_000, 10_700, 50):
        text = base64.b64encode(secret.encode() * 400).decode()[: length // 16] + "." * (
            length - length // 16
        )
        assert secret[:4] not in hide_and_cut(f"{text}{secret}{'.' * 20_000}", 300, [secret])
    assert hide_and_cut("short", 5) == "short"
    assert hide_and_cut("." * 100_000, 5) == ".....…"


def test_secrets_come_from_the_environment() -> None:
    environ = {
        "SHOP_API_KEY": "a-long-key",
        "PGPASSWORD": "a-password",
        "github_token": "a-token-of-ours",
        "SHORT_KEY": "abc",
        "HOME": "/home/ann-the-owner",
        "DATABASE_URL": "postgresql://ann:p%40ssword@db/shop?sslmode=require&sslpassword=other",
        "PROXY": "https://proxy.example/path?page=three",
    }
    assert set(environment_secrets(environ)) == {
        "a-long-key",
        "a-password",
        "a-token-of-ours",
        "p%40ssword",
        "p@ssword",
        "other",
    }


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:p@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:p@ss@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
        ("postgresql://ann:p:w/o?r#d@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:p/w@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:p#w@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann@db/shop", "postgresql://ann@db/shop"),
        (
            "postgresql://db/shop?password=p@w&user=ann",
            "postgresql://db/shop?password=***&user=ann",
        ),
        (
            "postgresql://db/shop?PASSWORD=p&sslkey=k",
            "postgresql://db/shop?PASSWORD=***&sslkey=***",
        ),
        ("postgresql://a:1,b:2/shop?sslmode=require", "postgresql://a:1,b:2/shop?sslmode=require"),
        ("postgresql://[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql://ann:secret", "postgresql://ann:***"),
        ("mysql://ann:p@db", "mysql://ann:***@db"),
        (
            "postgresql://ann:a=?secret=?@db/shop?sslmode=require",
            "postgresql://ann:***@db/shop?sslmode=require",
        ),
        ("ann:secret@db", "***"),
        ("host=db password=secret", "***"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("agents.db", "agents.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.text(min_size=6, max_size=20).map(lambda text: f"{text}~hunter22~{text}"))
def test_no_password_is_shown_whatever_is_in_it(password: str) -> None:
    """Also if it is not escaped as it should be, and whether it stands before the host or in an option."""
    for url in (
        f"postgresql://ann:{password}@db/shop",
        f"postgresql://ann:x@db/shop?password={quote_plus(password)}",
    ):
        assert "hunter22" not in shown_url(url)
        assert any("hunter22" in secret for secret in url_secrets(url))
