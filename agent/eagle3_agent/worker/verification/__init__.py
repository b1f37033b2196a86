"""Parts of ``verify``: files, choice of samples, reference, comparison, diagnosis, substitutes.

``worker/verify.py`` puts them together.  ``compare`` says whether states are right, and alone
decides; ``diagnose`` says what is wrong with those that are not; ``substitutes`` says what can be
said without a second model.
"""
