"""The load of a recorded incident, without any text, to be played again."""
