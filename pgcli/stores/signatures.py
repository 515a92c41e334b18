"""Removes signatures and tokens from the queries of URLs, which rows and messages must not show."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

#: Parameters of these clouds that sign an address: S3, Google, Alibaba and Tencent.
_PREFIXES = (
    *("x-amz-", "x-goog-", "x-oss-signature", "x-oss-credential", "x-oss-date", "x-oss-expires"),
    *("x-oss-security", "q-sign", "q-ak", "q-key-time", "q-header-list", "q-url-param-list"),
)
_SECRETS = frozenset(
    "signature sig sign hmac token access_token auth_token id_token security-token auth "
    "authorization jwt apikey api_key api-key x-api-key password passwd pwd secret client_secret "
    "sas awsaccesskeyid googleaccessid ossaccesskeyid key-pair-id hdnea hdnts hdntl".split()
)
#: What a signature covers, and what is something else in an address without one.
_SIGNED = frozenset(
    "expires expiry exp policy hash-algorithm key timestamp ts nonce ttl se st sp sv sr ss srt si "
    "ses spr sip sdd skoid sktid skt ske sks skv saoid suoid scid".split()
)
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?#\"<>]*)\?([^\s#\"<>]*)")


def without_signatures(text: str) -> str:
    """The text, with signatures and tokens removed from the URLs in it.

    An address that is signed anew is the same text again. Other parameters stay, in order.
    """
    return _QUERY.sub(_unsigned, text) if "?" in text else text


def _unsigned(found: re.Match[str]) -> str:
    fields = found[2].split("&")
    names = [unquote_plus(field.partition("=")[0]).lower() for field in fields]
    secret = [name in _SECRETS or name.startswith(_PREFIXES) for name in names]
    if not any(secret):
        return found[0]
    kept = [
        field
        for field, name, is_secret in zip(fields, names, secret, strict=True)
        if not is_secret and name not in _SIGNED
    ]
    return f"{found[1]}?{'&'.join(kept)}" if kept else found[1]
