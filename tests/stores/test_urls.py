"""URLs as text: split, joined, and shown without credentials and signatures."""

import pytest

from pgcli.stores.urls import join_url, parent_url, url_path, without_credentials

SIGNED = {
    "aws": "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F20260101%2Feu%2Fs3&"
    "X-Amz-Date={n}&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=SECRET{n}",
    "aws v2": "AWSAccessKeyId=SECRET&Expires={n}&Signature=SECRET{n}%3D",
    "google": "X-Goog-Algorithm=GOOG4&X-Goog-Date={n}&X-Goog-Signature=SECRET{n}",
    "azure": "sv=2024-11-04&se=2026-{n}&sr=b&sp=r&sig=SECRET{n}%3D",
    "cloudfront": "Policy=SECRET{n}&Signature=SECRET{n}&Key-Pair-Id=SECRET",
    "token": "access_token=SECRET{n}",
    "quoted": "X%2DAmz%2DSignature=SECRET{n}",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("--x=https://u:p@q@h/x@y", "--x=https://h/x@y"),
        ("s3://anonymous@b/k", "s3://anonymous@b/k"),
        ("s3://key:secret@b/k@2x.png", "s3://b/k@2x.png"),
        ("hf://datasets/a/b@main/x.png", "hf://datasets/a/b@main/x.png"),
        ("https://h/?to=a@b.c", "https://h/?to=a@b.c"),
        ("me@h", "me@h"),
    ],
)
def test_url_is_shown_without_credentials(text, shown):
    assert without_credentials(text) == shown


def test_urls_are_split_and_joined():
    assert url_path("https://h/a%20b.PNG?x=1.gif#y.jpg") == "/a b.PNG"
    assert parent_url("https://h/a/m.jsonl?key=a/b") == "https://h/a"
    assert parent_url("https://h") == "https://h/"
    assert parent_url("s3://b/m.jsonl") == "s3://b/"
    assert join_url("https://h/a", "b c?.png") == "https://h/a/b%20c%3F.png"
    assert join_url("s3://b/a", "b c?.png") == "s3://b/a/b c?.png"


@pytest.mark.parametrize("kind", SIGNED)
def test_signature_is_removed_and_other_parameters_stay(kind):
    first, second = (SIGNED[kind].format(n=n) for n in (1, 2))
    url = "https://h.example/a%20b.png"
    assert without_credentials(f"{url}?{first}") == url
    shown = without_credentials(f"{url}?size=8&{first}&versionId=3")
    assert shown == f"{url}?size=8&versionId=3"
    assert shown == without_credentials(f"{url}?size=8&{second}&versionId=3")
    assert without_credentials(f"see {url}?{first} and {url}?{second}.") == f"see {url} and {url}"


def test_address_without_a_signature_is_unchanged():
    for query in ("v=1&key=a/1.png", "expires=never&policy=x", "id=3&st=4&se=5", "q-factor=80", ""):
        assert without_credentials(f"https://h/x.png?{query}") == f"https://h/x.png?{query}"
    assert without_credentials("a?token=1") == "a?token=1"
