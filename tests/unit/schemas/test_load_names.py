"""Which names somebody may ask to load."""

import pytest
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.model_config import check_load_name


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_MR_14_an_empty_name_is_refused(name):
    with pytest.raises(InvalidRequest, match="Model name cannot be empty"):
        check_load_name(name)


@pytest.mark.parametrize("name", ["..", " .. ", "a/b", "/", "../m"])
def test_MR_14_a_path_is_no_name(name):
    with pytest.raises(InvalidRequest, match="must not contain path traversal characters"):
        check_load_name(name)


@pytest.mark.parametrize("name", ["...", "a..1", " m ", ".", "m"])
def test_MR_14_other_names_pass(name):
    check_load_name(name)
