"""What is neither a path nor a name of a model is refused as what it is."""

from __future__ import annotations

import pytest

from sartor.api.models import read
from sartor.errors import InputError


@pytest.mark.parametrize(
    ("url", "nearest"),
    [("https://huggingface.co/foo/bar/resolve/main/config.json", "foo/bar"), ("https://example.org/config.json", "")],
)
def test_a_url_is_refused_as_one(url: str, nearest: str) -> None:
    with pytest.raises(InputError, match="not a URL") as found:
        read(url)
    assert (found.value.value, found.value.nearest) == (url, nearest)
