"""`python -m kvitals`: the same as the command `kvitals`."""

from kvitals.ui.cli.launch import main

main()
