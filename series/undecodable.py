"""What a decoder raises for bytes that are not a document of its format."""

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Also a text that is not UTF-8, which msgspec finds late, and nesting beyond any document's. A reader of bytes from
outside that forgets one of them ends with a traceback, so no other module names `msgspec.DecodeError` alone."""
