"""Hide secrets in texts that are shown to people or logged.

Rule 1. A text is searched before it is cut: half a key at the end would not be recognised.
Rule 2. Rather hide too much than too little. Of a URL, only parts that are known to be harmless are shown.
Rule 3. No pattern here backtracks: the texts come from untrusted servers and programs.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN: Final = "[hidden]"
MIN_SECRET_LENGTH: Final = 8
"""A shorter value of a variable is not treated as a secret: it would match ordinary words."""
MIN_PASSWORD_LENGTH: Final = 4
MIN_MARGIN: Final = 256
_LONGEST_ESCAPE: Final = 20
"""The longest escaped form of one character of a secret: four bytes, each quoted twice for a URL."""

_SECRET_NAMES: Final = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)$", re.IGNORECASE)
_HARMLESS_OPTIONS: Final = frozenset(
    {
        "application_name",
        "connect_timeout",
        "database",
        "dbname",
        "host",
        "hostaddr",
        "port",
        "sslmode",
        "target_session_attrs",
        "user",
    }
)
"""The options in a URL of PostgreSQL whose values are shown."""
_SECRET_OPTIONS: Final = re.compile(r"pass|pwd|secret|token|key|sig|auth|credential", re.IGNORECASE)
"""The options in any URL whose values are hidden in other texts."""

_BASE64: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=")
_BREAK: Final = re.compile(r"[\r\n][ \t]*|\\[rn]?")
"""A separator between characters of base64: a line break, literal or escaped, or an escape."""
_KEYS: Final = re.compile(r"\b(?:sk|pk|rk|gsk|xai|AIza|ya29)[-_.A-Za-z0-9*]{8,}")
# A token begins only where no token character precedes it, so a text is scanned once.
_JSON_WEB_TOKEN: Final = re.compile(
    r"(?<![-_A-Za-z0-9])eyJ[-_A-Za-z0-9]{6,}\.[-_A-Za-z0-9]{6,}(?:\.[-_A-Za-z0-9]*)?"
)
_KEY_HEADER: Final = re.compile(
    r"((?:x-api-key|x-goog-api-key|api[-_]key)\\?[\"']?[ \t]*[:=][ \t]*\\?[\"']?)[^\s\"',;\\]+",
    re.IGNORECASE,
)
# The schemes of the first group are followed by one word. Any other value extends to its closing quote or to the end
# of the line, and its first word is shown only if it is a known scheme: otherwise it may be the secret.
_AUTHORIZATION: Final = re.compile(
    r"(authorization\\?[\"']?[ \t]*[:=][ \t]*)(\\?[\"'])?"
    r"(?:((?:bearer|basic|api-?key|negotiate)[ \t]+)[^\s\"',;\\]+"
    r"|((?:token|digest|hawk|oauth|dpop|aws4-hmac-sha256)[ \t]+)?"
    r"(?(2)(?:\\{3}[\"']|(?!\2)(?:\\.|[^\\]))*|[^\r\n]+))",
    re.IGNORECASE | re.DOTALL,
)
_URL_START: Final = re.compile(r"(:\\*/\\*/)")
_URL_END: Final = re.compile(r"[\s\"<>]")
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_SCHEME: Final = re.compile(
    r"\b(bearer|basic)([ \t]+|%20|\+)([-._~+/=A-Za-z0-9%]{8,})", re.IGNORECASE
)


def hide_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Return text without secrets, however they are escaped, and without what looks like a key or a token.

    >>> hide_secrets("Not with Bearer abc123def456", ["correct horse"])
    'Not with Bearer [hidden]'
    """
    unbroken = _BREAK.sub("", text)
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = _without(text, secret, unbroken)
    text = _KEY_HEADER.sub(lambda found: f"{found[1]}{HIDDEN}", _without_url_passwords(text))
    text = _AUTHORIZATION.sub(
        lambda found: f"{found[1]}{found[2] or ''}{found[3] or found[4] or ''}{HIDDEN}", text
    )
    text = _SCHEME.sub(_hidden_token, text)
    return _KEYS.sub(HIDDEN, _JSON_WEB_TOKEN.sub(HIDDEN, text))


def hide_and_cut(text: str, limit: int, secrets: Iterable[str] = ()) -> str:
    """Return at most ``limit`` characters of a text, with secrets hidden first and an ellipsis if it was cut.

    Of a very long text only the beginning is searched, which bounds the time that a hostile text can cost. The end of
    that beginning may be the first half of a secret and is never shown.
    """
    known = tuple(secrets)
    margin = _LONGEST_ESCAPE * max([*map(len, known), MIN_MARGIN])
    searched = text[: limit + 2 * margin]
    shown = hide_secrets(searched, known)
    if len(searched) < len(text):
        shown = shown[:-margin]
    elif len(shown) <= limit:
        return shown
    return f"{shown[:limit]}…"


def environment_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets in environment variables: keys, tokens and passwords, also those in URLs."""
    for name, value in environ.items():
        if _SECRET_NAMES.search(name) and len(value) >= MIN_SECRET_LENGTH:
            yield value
        if "://" in value:
            yield from url_secrets(value)


# --- URLs ---


def shown_url(url: str) -> str:
    """Return a store's URL for display: without passwords, wherever they are in it and however they are escaped.

    >>> shown_url("postgresql://ann:p@ss@host/db?sslmode=require&password=p")
    'postgresql://ann:***@host/db?sslmode=require&password=***'
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url or "password" in url.lower() else url
    if scheme == "memory" or (scheme == "sqlite" and rest.startswith("/")):
        return url
    place, mark, options = rest.partition("?")
    if "@" in options and ":" in place:
        # An unescaped password may contain a question mark: it ends at the last @.
        password, _, end = rest.rpartition("@")
        place, mark, options = end.partition("?")
        place = f"{password}@{place}"
    user, at, host = place.rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        shown = f"{name}{':***' if colon else ''}@{host}"
    elif "@" in options or not _is_host(place):
        # An unescaped password may contain a slash.
        shown = place.partition(":")[0] + (":***" if ":" in place else "")
    else:
        shown = place
    return f"{scheme}://{shown}{mark}{'&'.join(map(_shown_option, options.split('&') if mark else ()))}"


def url_secrets(url: str) -> Iterator[str]:
    """Yield the passwords in a URL, as written and unescaped."""
    _, separator, rest = url.partition("://")
    place, _, options = rest.partition("?")
    found = []
    for whole in (place, rest) if separator else ():
        _, colon, password = whole.rpartition("@")[0].partition(":")
        found += [password, unquote(password)] if colon else []
    for option in options.split("&"):
        name, _, value = option.partition("=")
        if _SECRET_OPTIONS.search(name):
            found += [value, unquote_plus(value)]
    yield from {one for one in found if len(one) >= MIN_PASSWORD_LENGTH}


def _without_url_passwords(text: str) -> str:
    """Return text without the passwords of the URLs in it."""
    parts = _URL_START.split(text)
    parts[2::2] = map(_without_password, parts[2::2])
    return "".join(parts)


def _without_password(rest: str) -> str:
    """Return the part of a URL after ``://`` without a password at its beginning."""
    end = _URL_END.search(rest)
    url = rest[: end.start()] if end else rest
    authority = _AUTHORITY_END.split(url, 1)[0]
    user, _, _ = url.rpartition("@")
    name, _, password = user.partition(":")
    # An unescaped password may contain the characters that end the host.
    if password in ("", "***") or ("@" not in authority and _is_host(authority)):
        return rest
    return f"{name}:{HIDDEN}{rest[len(user) :]}"


def _is_host(place: str) -> bool:
    """Return whether the text before a slash is a list of hosts with numeric ports."""
    hosts = place.partition("/")[0].split(",")
    return all(_port(host).isdigit() or not _port(host) for host in hosts)


def _port(host: str) -> str:
    return host.rpartition("]")[2].partition(":")[2]


def _shown_option(option: str) -> str:
    name, equals, _ = option.partition("=")
    if name.lower() in _HARMLESS_OPTIONS:
        return option
    return f"{name}=***" if equals else "***"


# --- forms of a secret ---


def _without(text: str, secret: str, unbroken: str) -> str:
    """Return text without a secret; ``unbroken`` is the text without line breaks."""
    if not secret:
        return text
    plain, folded, encoded = _forms(secret)
    for form in plain:
        text = text.replace(form, HIDDEN)
    for pattern in folded:
        text = pattern.sub(HIDDEN, text)
    for form in encoded:
        text = _without_token(text, form)
        if form in unbroken:
            breaks = f"(?:{_BREAK.pattern})*+"
            text = re.sub(breaks.join(map(re.escape, form)), HIDDEN, text)
    return text


@lru_cache(maxsize=256)
def _forms(secret: str) -> tuple[tuple[str, ...], tuple[re.Pattern[str], ...], tuple[str, ...]]:
    """Return the forms of a secret: literal, hexadecimal in either case, and within base64."""
    data = secret.encode("utf-8", "surrogatepass")
    written = {secret, html.escape(secret), repr(secret)[1:-1], ascii(secret)[1:-1]}
    written |= {repr(data)[2:-1], secret.encode("unicode_escape", "surrogatepass").decode()}
    for form in list(written):
        for ascii_only in (True, False):
            for once in _json_forms(form, ascii_only=ascii_only):
                written |= {once, *_json_forms(once, ascii_only=ascii_only)}
    quoted = {quote(data, safe=""), quote(data), quote_plus(data), data.hex()}
    quoted |= {quote(one, safe="") for one in list(quoted)}
    folded = (re.compile(re.escape(one), re.IGNORECASE) for one in _longest(quoted - written))
    return _longest(written), tuple(folded), _longest(_base64_forms(data))


def _json_forms(text: str, *, ascii_only: bool) -> tuple[str, str]:
    """Return a text as JSON, with and without escaped slashes."""
    form = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    return form, form.replace("/", r"\/")


def _longest(forms: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _base64_forms(data: bytes) -> set[str]:
    """Return the base64 forms of data for each position at which it may begin in the encoded bytes.

    Characters that also depend on neighbouring bytes are left out.
    """
    forms = set()
    for before in range(3):
        first, last = (8 * before + 5) // 6, 8 * (before + len(data)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(bytes(before) + data).decode()[first:last])
    return {form for form in forms if len(form) >= MIN_SECRET_LENGTH}


def _without_token(text: str, form: str) -> str:
    """Return text without every run of base64 characters that contains a form."""
    parts, start = [], 0
    while (at := text.find(form, start)) >= 0:
        begin, end = at, at + len(form)
        while begin > start and text[begin - 1] in _BASE64:
            begin -= 1
        while end < len(text) and text[end] in _BASE64:
            end += 1
        parts += [text[start:begin], HIDDEN]
        start = end
    return "".join([*parts, text[start:]])


def _hidden_token(found: re.Match[str]) -> str:
    """Hide the text after "Bearer" or "Basic", unless it is a word of a sentence."""
    is_word = found[3].strip(".").isalpha() and len(found[3]) < 20
    return found[0] if is_word else f"{found[1]}{found[2]}{HIDDEN}"
