"""The lever of a finding as a change of the files that start an engine: edits of text, and what a reviewer reads."""
