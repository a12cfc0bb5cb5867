"""What a process says of itself when it has started."""

import pytest
from headrace.deploy.welcome import url_of


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("localhost", "http://localhost:8000"),
        ("::1", "http://[::1]:8000"),
        ("::", "http://[::]:8000"),
    ],
)
def test_an_ipv6_address_stands_in_brackets(address, url):
    assert url_of(address, 8000) == url
