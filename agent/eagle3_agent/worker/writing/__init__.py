"""States -> sample files: writers of the capturing process, told of to the run by a file.

``pool`` (bound on memory, first error, manifest) has a thread a writer, which asks ``process`` to
have ``child``, a process without torch, write what lies in ``shared`` memory, or writes itself.
Both do ``sample``: ``files`` (one durable, hashed file), filled by ``formats`` (the bytes of either
format) after ``checks`` (states that nobody may train on); ``ledger`` is what the run reads.
"""
