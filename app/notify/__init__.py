"""From an alert to a message with its cause: taken in, kept on disk, diagnosed, handed on."""
