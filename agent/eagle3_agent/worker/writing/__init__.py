"""States -> sample files: threads in the capturing process, told of to the run by a file.

``pool`` (threads, bound on memory) uses ``files`` (one durable, hashed file), which is filled by
``formats`` (the bytes of either format) after ``checks`` (states that nobody may train on);
``ledger`` is what the run reads.
"""
