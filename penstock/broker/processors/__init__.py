"""What the broker answers, by request code: each module handles one kind of request.

A processor is given its collaborators, registers its handlers in a table and keeps no state of its own. Handlers run
in the event loop and do not block.
"""
