"""What all tests share."""

from hypothesis import settings

# A deadline would make the tests fail on a busy machine; examples are the same in every run, and more can be
# asked for with --hypothesis-profile=search.
settings.register_profile("kvitals", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("kvitals")
