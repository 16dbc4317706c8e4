"""Record: the facts of one run, and the append-only journal on disk from which it is folded.

::

    runs/<run_id>/journal.jsonl    append-only, synced at every flush: the truth          journal.py
                  record.json      its fold, written when the run ends                    fold.py

Start reading in record.py, which defines the Record; reader.py reads a journal's lines, index.py finds runs
by name. Every other room may import this one; it imports nothing of dpexp and neither torch nor mlflow.
"""
