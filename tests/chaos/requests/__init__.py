"""What hostile clients, exporters and logs can do to the request side of a running kvitals.

    python -m tests.chaos.requests [NAME...] [--full]

starts the real agent and the real tap on loopback, before an engine that only plays one. A good client goes on all the
while, whose numbers must stay right. What the attacks send has marks in it (`planted`), and at the end no file that
kvitals wrote may hold one.
"""
