"""Process: the uploader beside a run, its pipe to the main process, and the server of the UI."""
