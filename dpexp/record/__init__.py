"""Record: the facts of one run, and the append-only journal on disk from which it is folded.

::

    runs/<run_id>/journal.jsonl    append-only, synced at every flush: the truth          journal.py
                  record.json      its fold, written when the run ends                    fold.py
                  profile.json.gz, .txt  of --profile                                     files.py

Start reading in record.py, which defines the Record. view.py computes its figures, each once, and figures.py
names them. fold.py, above them, reads a Record with its summary from a folder. files.py writes files that
are private and whole; runs.py finds runs by name. Every other package may import this one; it imports only
``config``, and neither torch nor mlflow.
"""
