"""The coordinator: who leads, who is alive, who owns which partition.

Rule: what it decides is written to the metadata store first, by compare-and-set; what it keeps in memory may be
lost at any moment. It never touches a message.
"""
