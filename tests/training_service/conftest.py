import pytest

pytest.register_assert_rewrite("nasflow.testing.training_service")  # a failed assert there shows its values too
